// The autograd node of any operator, told by places: see core/saving.py, which counts them.
#pragma once
#include <Python.h>
#include <c10/util/SmallVector.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/saved_variable.h>
#include <torch/headeronly/version.h>

#include <string>
#include <vector>

#include "fuseline/core/host/operator.h"

namespace fuseline::host {

using torch::autograd::variable_list;
// The tensors that one call saved: few, for which memory from the heap would cost as much.
using Saved = c10::SmallVector<at::Tensor, 4>;

// "values": gradients of the outputs, saved tensors, what else is saved, and for each argument
// whether its gradient is wanted.
struct Plan {
  std::string name;  // of the nodes
  Operator fwd, bwd;
  size_t outputs;               // results of the forward that are the operator's
  std::vector<size_t> kept;     // of the arguments and then the results, what is saved
  size_t tensors;               // how many of those are tensors: the first ones
  std::vector<size_t> taken;    // of the values, the backward's arguments
  std::vector<size_t> gives;    // the arguments that it has gradients of
  std::vector<size_t> sources;  // what these are: 0 is the output's gradient, then its results
  ptrdiff_t works;              // of the values, that without which all are the output's; or -1
  std::vector<size_t> beyond;   // the tensors among the arguments that it has no gradient of
  std::vector<size_t> alike;    // the arguments whose dtypes must be the same for it, or none
  PyObject* by_formula;         // (needs, *values without needs) -> gradients of all arguments

  // Whether the kernels give the gradient of a call with these arguments.
  bool serves(const Stack& arguments) const;
};

// What one call saves beside tensors.
struct Call {
  const Plan* plan;
  uint64_t defined;  // which arguments are tensors, a bit each
  std::vector<c10::IValue> others;

  // Which of the node's results is the gradient of an argument, and how many there are.
  size_t place_of(size_t argument) const;
  size_t gradients() const { return place_of(plan->fwd.schema().arguments().size()); }
};

class Differentiable : public torch::autograd::Node {
 public:
  Differentiable(const Plan& plan, const Stack& arguments, torch::autograd::edge_list&& edges);

  void save(const Stack& arguments, const Stack& results);

  std::string name() const override { return call_.plan->name; }
  variable_list apply(variable_list&& dys) override;
  void release_variables() override;
#if TORCH_VERSION_MINOR >= 13
  void release_resources() override;
#endif
  // Compiled autograd: what its graphs are told apart by, and a call in such a graph.
  void compiled_args(torch::dynamo::autograd::CompiledNodeArgs& args) const override;
  variable_list apply_with_saved(const variable_list& dys,
                                 torch::dynamo::autograd::SwapSavedVariables& saved) override;

 private:
  Saved unpacked();
  uint64_t needs() const;  // which arguments' gradients are wanted, a bit each

  Call call_;
  std::vector<torch::autograd::SavedVariable> saved_;
};

// The outputs, of which autograd knows how they were made.
Stack differentiable(const Plan& plan, const Stack& arguments);

}  // namespace fuseline::host
