// An operator of the dispatcher, called with what Python gave.
#pragma once
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <Python.h>

#include <optional>
#include <string>
#include <vector>

namespace fuseline::host {

using torch::jit::Stack;

class Operator {
 public:
  explicit Operator(const std::string& name);

  // The arguments as the schema has them, the defaults of those left out among them; nullopt for
  // what only torch's own conversion may take. The tensors are no subclasses.
  std::optional<Stack> arguments(PyObject* const* args, Py_ssize_t count) const;

  // Takes the arguments off the stack and leaves the results.
  void call(Stack& stack) const { handle_.callBoxed(stack); }

  const c10::FunctionSchema& schema() const { return handle_.schema(); }

 private:
  enum class Kind { kTensor, kInt, kFloat, kBool, kString, kOther };
  struct Argument {
    Kind kind;
    bool optional;
    std::optional<c10::IValue> value;  // if left out
  };

  static Argument argument(const c10::Argument& of);
  static bool push(Stack& stack, const Argument& as, PyObject* given);

  c10::OperatorHandle handle_;
  std::vector<Argument> arguments_;
};

}  // namespace fuseline::host
