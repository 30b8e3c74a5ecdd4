#include "fuseline/core/host/operator.h"

#include <torch/csrc/autograd/python_variable.h>

namespace fuseline::host {

Operator::Operator(const std::string& name)
    : handle_(c10::Dispatcher::singleton().findSchemaOrThrow(name.c_str(), "")) {
  for (const c10::Argument& of : schema().arguments()) arguments_.push_back(argument(of));
}

std::optional<Stack> Operator::arguments(PyObject* const* args, Py_ssize_t count) const {
  if (static_cast<size_t>(count) > arguments_.size()) return std::nullopt;
  Stack stack;
  stack.reserve(arguments_.size() + 1);
  for (size_t i = 0; i < arguments_.size(); ++i) {
    const Argument& as = arguments_[i];
    if (i < static_cast<size_t>(count)) {
      if (!push(stack, as, args[i])) return std::nullopt;
    } else if (as.value) {
      stack.push_back(*as.value);
    } else {
      return std::nullopt;
    }
  }
  return stack;
}

Operator::Argument Operator::argument(const c10::Argument& of) {
  c10::TypePtr type = of.type();
  const auto optional = type->cast<c10::OptionalType>();
  if (optional) type = optional->getElementType();
  const auto kind = [&] {
    switch (type->kind()) {
      case c10::TypeKind::TensorType:
        return Kind::kTensor;
      case c10::TypeKind::IntType:
      case c10::TypeKind::SymIntType:
        return Kind::kInt;
      case c10::TypeKind::FloatType:
        return Kind::kFloat;
      case c10::TypeKind::BoolType:
        return Kind::kBool;
      case c10::TypeKind::StringType:
        return Kind::kString;
      default:
        return Kind::kOther;
    }
  };
  return {kind(), optional != nullptr, of.default_value()};
}

bool Operator::push(Stack& stack, const Argument& as, PyObject* given) {
  if (given == Py_None) {
    stack.emplace_back();
    return as.optional;
  }
  switch (as.kind) {
    case Kind::kTensor:
      if (!THPVariable_CheckExact(given)) return false;
      stack.emplace_back(THPVariable_Unpack(given));
      return true;
    case Kind::kInt: {
      int overflow = 0;
      if (!PyLong_CheckExact(given)) return false;
      stack.emplace_back(static_cast<int64_t>(PyLong_AsLongLongAndOverflow(given, &overflow)));
      return !overflow;
    }
    case Kind::kFloat:
      if (!PyFloat_CheckExact(given)) return false;
      stack.emplace_back(PyFloat_AS_DOUBLE(given));
      return true;
    case Kind::kBool:
      if (!PyBool_Check(given)) return false;
      stack.emplace_back(given == Py_True);
      return true;
    case Kind::kString: {
      if (!PyUnicode_CheckExact(given)) return false;
      Py_ssize_t size = 0;
      const char* text = PyUnicode_AsUTF8AndSize(given, &size);
      if (!text) PyErr_Clear();
      if (text) stack.emplace_back(std::string(text, size));
      return text != nullptr;
    }
    case Kind::kOther:
      break;
  }
  return false;
}

}  // namespace fuseline::host
