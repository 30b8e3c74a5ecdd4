#include "fuseline/core/host/gradient.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/dynamo/compiled_autograd.h>
#include <torch/csrc/utils/object_ptr.h>

#include <algorithm>

namespace fuseline::host {

using c10::IValue;
using torch::autograd::Node;

namespace {

IValue value_of(const at::Tensor& t) { return t.defined() ? IValue(t) : IValue(); }

// Whether the backward must itself be differentiable, in reverse or in forward mode.
bool wants_graph(const variable_list& dys, const Saved& saved) {
  const auto any = [](const auto& tensors) {
    return std::any_of(tensors.begin(), tensors.end(), torch::autograd::isFwGradDefined);
  };
  return at::GradMode::is_enabled() || any(dys) || any(saved);
}

// The values of one backward, by their places.
struct Values {
  const Call& call;
  uint64_t needs;
  const variable_list& dys;
  const Saved& saved;

  // How many come before those of `needs`.
  size_t size() const { return dys.size() + saved.size() + call.others.size(); }

  IValue operator[](size_t place) const {
    if (place < dys.size()) return value_of(dys[place]);
    place -= dys.size();
    if (place < saved.size()) return value_of(saved[place]);
    place -= saved.size();
    if (place < call.others.size()) return call.others[place];
    return wanted(place - call.others.size());
  }
  bool wanted(size_t argument) const { return needs >> argument & 1; }
};

PyObject* object_of(const IValue& value) {
  if (value.isTensor()) return THPVariable_Wrap(value.toTensor());
  if (value.isInt()) return PyLong_FromLongLong(value.toInt());
  if (value.isDouble()) return PyFloat_FromDouble(value.toDouble());
  if (value.isBool()) return PyBool_FromLong(value.toBool());
  if (value.isString()) return PyUnicode_FromString(value.toStringRef().c_str());
  return Py_NewRef(Py_None);
}

[[noreturn]] void raise_python_error() {
  python_error error;
  error.persist();
  throw error;
}

// The gradients by the formula, which is Python's.
variable_list by_formula(const Values& values) {
  pybind11::gil_scoped_acquire gil;
  const Plan& plan = *values.call.plan;
  const size_t size = values.size(), arguments = plan.fwd.schema().arguments().size();
  THPObjectPtr args(PyTuple_New(size + 1)), needs(PyTuple_New(arguments));
  if (!args || !needs) raise_python_error();
  for (size_t i = 0; i < arguments; ++i) {
    PyTuple_SET_ITEM(needs.get(), i, PyBool_FromLong(values.wanted(i)));
  }
  PyTuple_SET_ITEM(args.get(), 0, needs.release());
  for (size_t i = 0; i < size; ++i) PyTuple_SET_ITEM(args.get(), i + 1, object_of(values[i]));
  THPObjectPtr made(PyObject_CallObject(plan.by_formula, args.get()));
  if (!made) raise_python_error();
  THPObjectPtr items(PySequence_Tuple(made.get()));
  if (!items) raise_python_error();
  variable_list gradients(values.call.gradients());
  for (size_t i = 0; i < arguments; ++i) {
    PyObject* const gradient = PyTuple_GET_ITEM(items.get(), i);
    if (THPVariable_Check(gradient)) {
      gradients[values.call.place_of(i)] = THPVariable_Unpack(gradient);
    }
  }
  return gradients;
}

// Whether a gradient that is wanted is the backward's.
bool is_called(const Plan& plan, const Values& values) {
  if (plan.works >= 0 && !values[plan.works].toBool()) return false;
  for (size_t i = 0; i < plan.gives.size(); ++i) {
    if (plan.sources[i] > 0 && values.wanted(plan.gives[i])) return true;
  }
  return false;
}

variable_list by_kernels(const Values& values) {
  const Plan& plan = *values.call.plan;
  Stack results;
  const bool called = is_called(plan, values);
  if (called) {
    results.reserve(plan.taken.size());
    for (const size_t place : plan.taken) results.push_back(values[place]);
    at::AutoDispatchBelowADInplaceOrView below;
    plan.bwd.call(results);
  }
  variable_list gradients(values.call.gradients());
  for (size_t i = 0; i < plan.gives.size(); ++i) {
    const size_t argument = plan.gives[i], source = called ? plan.sources[i] : 0;
    if (values.wanted(argument)) {
      gradients[values.call.place_of(argument)] =
          source ? results[source - 1].toTensor() : values.dys[0];
    }
  }
  return gradients;
}

// What owns a node is a shared_ptr before torch 2.13, an intrusive_ptr from then on.
template <class... Args>
auto owned(Args&&... args) {
#if TORCH_VERSION_MINOR >= 13
  return c10::make_intrusive<Differentiable>(std::forward<Args>(args)...);
#else
  return std::shared_ptr<Differentiable>(new Differentiable(std::forward<Args>(args)...),
                                         torch::autograd::deleteNode);
#endif
}

}  // namespace

bool Plan::serves(const Stack& arguments) const {
  for (const size_t i : beyond) {
    if (arguments[i].isTensor() && arguments[i].toTensor().requires_grad()) return false;
  }
  if (alike.empty()) return true;
  const IValue &a = arguments[alike[0]], &b = arguments[alike[1]];
  return a.isNone() || b.isNone() || a.toTensor().scalar_type() == b.toTensor().scalar_type();
}

size_t Call::place_of(size_t argument) const {
  return __builtin_popcountll(defined & ((uint64_t{1} << argument) - 1));
}

Differentiable::Differentiable(const Plan& plan, const Stack& arguments,
                               torch::autograd::edge_list&& edges)
    : Node(std::move(edges)), call_{&plan, 0, {}} {
  for (size_t i = 0; i < arguments.size(); ++i) {
    call_.defined |= uint64_t{arguments[i].isTensor()} << i;
  }
}

void Differentiable::save(const Stack& arguments, const Stack& results) {
  const Plan& plan = *call_.plan;
  const size_t given = arguments.size();
  saved_.reserve(plan.tensors);
  for (size_t i = 0; i < plan.kept.size(); ++i) {
    const size_t place = plan.kept[i];
    const IValue& value = place < given ? arguments[place] : results[place - given];
    if (i >= plan.tensors) {
      call_.others.push_back(value);
    } else if (value.isTensor()) {
      const bool is_output = place >= given && place - given < plan.outputs;
      saved_.emplace_back(value.toTensor(), is_output);
    } else {
      saved_.emplace_back();
    }
  }
}

Saved Differentiable::unpacked() {
  TORCH_CHECK(saved_.size() == call_.plan->tensors, torch::autograd::ERR_BACKWARD_TWICE);
  Saved saved;
  for (const auto& one : saved_) saved.push_back(one.unpack(getptr()));
  return saved;
}

uint64_t Differentiable::needs() const {
  uint64_t wanted = 0;
  for (size_t i = 0; i < call_.plan->fwd.schema().arguments().size(); ++i) {
    const bool defined = call_.defined >> i & 1;
    wanted |= uint64_t{defined && task_should_compute_output(call_.place_of(i))} << i;
  }
  return wanted;
}

variable_list Differentiable::apply(variable_list&& dys) {
  std::lock_guard<std::mutex> lock(mutex_);
  const Saved saved = unpacked();
  for (size_t i = 0; i < dys.size(); ++i) {
    if (!dys[i].defined()) dys[i] = input_metadata(i).zeros_like();
  }
  const Values values{call_, needs(), dys, saved};
  return wants_graph(dys, saved) ? by_formula(values) : by_kernels(values);
}

void Differentiable::release_variables() {
  std::lock_guard<std::mutex> lock(mutex_);
  saved_.clear();
}

#if TORCH_VERSION_MINOR >= 13
void Differentiable::release_resources() {
  Node::release_resources();
  saved_.clear();
}
#endif

void Differentiable::compiled_args(torch::dynamo::autograd::CompiledNodeArgs& args) const {
  args.collect(call_.plan->name);
  args.collect(call_.defined);
  for (const auto& one : saved_) args.collect(one, false);
  for (const IValue& value : call_.others) args.collect(value);
}

variable_list Differentiable::apply_with_saved(const variable_list& dys,
                                               torch::dynamo::autograd::SwapSavedVariables& saved) {
  namespace compiled = torch::dynamo::autograd;
  for (auto& one : saved_) saved.before(one);
  compiled::PackedArgs packed;
  const Saved own = unpacked();
  packed.pack(variable_list(own.begin(), own.end()));
  const std::vector<IValue> args = std::move(packed).vec();
  // All else is constant in the graph.
  const auto call = [call = call_, wanted = needs()](const variable_list& dys,
                                                     const std::vector<IValue>& args) {
    compiled::PackedArgs packed(args);
    const auto own = packed.unpack<variable_list>();
    const Saved saved(own.begin(), own.end());
    return by_kernels(Values{call, wanted, dys, saved});
  };
  const std::vector<at::TypePtr> types{args[0].type()};
  const auto& python = compiled::getPyCompilerInterface();
  PyObject* const compiler = saved.get_py_compiler();
  const std::string bound = python->bind_function(compiler, name(), call, types, true, true);
  const auto metadata =
      compiled::IValuePacker<std::vector<std::optional<torch::autograd::InputMetadata>>>::pack(
          compiled::get_input_metadata(next_edges()));
  auto gradients = python->call_function(compiler, "apply_functional", bound, dys, args, metadata);
  for (auto& one : saved_) saved.after(one);
  return gradients;
}

Stack differentiable(const Plan& plan, const Stack& arguments) {
  variable_list tensors;
  tensors.reserve(arguments.size());
  for (const IValue& value : arguments) {
    if (value.isTensor()) tensors.push_back(value.toTensor());
  }
  const auto node = owned(plan, arguments, torch::autograd::collect_next_edges(tensors));
  Stack results = arguments;
  {
    at::AutoDispatchBelowADInplaceOrView below;
    plan.fwd.call(results);
  }
  for (size_t i = 0; i < plan.outputs; ++i) {
    torch::autograd::set_history(results[i].toTensor(), node);
  }
  node->save(arguments, results);
  results.resize(plan.outputs);
  return results;
}

}  // namespace fuseline::host
