// The Python module `_host`: what eager code calls in the place of variant.guarded's function.
//
// It is built for one torch and one Python, unlike the binary, and core/host.py says when it is
// used. Whatever is out of the ordinary goes to the Python function that it stands for.
#include <ATen/core/LegacyTypeDispatch.h>
#include <Python.h>
#include <c10/core/impl/TorchDispatchModeTLS.h>
#include <structmember.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/jit/frontend/tracer.h>
#include <torch/csrc/utils/object_ptr.h>

#include <memory>

#include "fuseline/core/host/gradient.h"

namespace fuseline::host {
namespace {

constexpr int kFormat = 1;  // of what core/host.py gives; another's is not used

struct Caller {
  PyObject_HEAD vectorcallfunc vectorcall;
  PyObject *python, *eager;  // the function of variant.guarded, and its attribute
  std::unique_ptr<Operator> run;
  std::unique_ptr<Plan> plan;  // none: `python` differentiates
};

// Whether more than autograd looks on at operators.
bool watched() {
  const auto included = c10::impl::tls_local_dispatch_key_set().included_;
  return included.has(c10::DispatchKey::FuncTorchDynamicLayerFrontMode) ||
         included.has(c10::DispatchKey::FuncTorchDynamicLayerBackMode) ||
         c10::impl::TorchDispatchModeTLS::any_modes_set() || torch::jit::tracer::isTracing();
}

struct Seen {
  bool gradient = false, tangent = false;
};

Seen look_at(const Stack& arguments) {
  Seen seen;
  for (const c10::IValue& value : arguments) {
    if (!value.isTensor()) continue;
    const at::Tensor& t = value.toTensor();
    seen.gradient |= t.requires_grad();
    seen.tangent |= torch::autograd::isFwGradDefined(t);
  }
  return seen;
}

PyObject* wrapped(std::vector<at::Tensor> results) {
  if (results.size() == 1) return THPVariable_Wrap(std::move(results[0]));
  THPObjectPtr tuple(PyTuple_New(static_cast<Py_ssize_t>(results.size())));
  if (!tuple) return nullptr;
  for (size_t i = 0; i < results.size(); ++i) {
    PyTuple_SET_ITEM(tuple.get(), i, THPVariable_Wrap(std::move(results[i])));
  }
  return tuple.release();
}

std::vector<at::Tensor> without_gradient(const Operator& run, Stack& stack) {
  at::AutoDispatchBelowADInplaceOrView below;
  run.call(stack);
  std::vector<at::Tensor> results;
  for (c10::IValue& value : stack) results.push_back(std::move(value).toTensor());
  return results;
}

PyObject* call(PyObject* self, PyObject* const* args, size_t counted, PyObject* names) {
  HANDLE_TH_ERRORS
  const Caller& c = *reinterpret_cast<Caller*>(self);
  if (!names && !watched()) {
    if (auto stack = c.run->arguments(args, PyVectorcall_NARGS(counted))) {
      const Seen seen = look_at(*stack);
      const bool differentiate = seen.gradient && at::GradMode::is_enabled();
      if (!seen.tangent && (!differentiate || (c.plan && c.plan->serves(*stack)))) {
        variable_list results;
        {
          pybind11::gil_scoped_release without_gil;
          results =
              differentiate ? differentiable(*c.plan, *stack) : without_gradient(*c.run, *stack);
        }
        return wrapped(std::move(results));
      }
    }
  }
  return PyObject_Vectorcall(c.python, args, counted, names);
  END_HANDLE_TH_ERRORS
}

std::vector<size_t> places_of(PyObject* of) {
  std::vector<size_t> places;
  THPObjectPtr items(PySequence_Tuple(of));
  if (!items) throw python_error();
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(items.get()); ++i) {
    places.push_back(PyLong_AsSize_t(PyTuple_GET_ITEM(items.get(), i)));
  }
  if (PyErr_Occurred()) throw python_error();
  return places;
}

// (name, fwd, bwd, outputs, kept, tensors, taken, gives, beyond, alike, by_formula)
std::unique_ptr<Plan> plan_of(PyObject* of) {
  const char *name, *fwd, *bwd;
  Py_ssize_t outputs, tensors;
  PyObject *kept, *taken, *gives, *beyond, *alike, *by_formula;
  if (!PyArg_ParseTuple(of, "sssnOnOOOOO", &name, &fwd, &bwd, &outputs, &kept, &tensors, &taken,
                        &gives, &beyond, &alike, &by_formula)) {
    throw python_error();
  }
  return std::make_unique<Plan>(
      Plan{name, Operator(fwd), Operator(bwd), static_cast<size_t>(outputs), places_of(kept),
           static_cast<size_t>(tensors), places_of(taken), places_of(gives), places_of(beyond),
           places_of(alike), Py_NewRef(by_formula)});
}

void release(PyObject* self) {
  Caller& c = *reinterpret_cast<Caller*>(self);
  Py_XDECREF(c.python);
  Py_XDECREF(c.eager);
  // A node of a graph may still point to the plan, and operators are for the life of a process.
  (void)c.plan.release();
  c.run.~unique_ptr();
  PyObject_Free(self);
}

PyMemberDef members[] = {
    {"eager", T_OBJECT, offsetof(Caller, eager), READONLY, "without any guard"},
    {"python", T_OBJECT, offsetof(Caller, python), READONLY, "what serves all else"},
    {nullptr}};

PyTypeObject caller_type = {PyVarObject_HEAD_INIT(nullptr, 0)};

// call(python, run, plan or None) -> what eager code calls
PyObject* make(PyObject*, PyObject* args) {
  HANDLE_TH_ERRORS
  PyObject *python, *plan;
  const char* run;
  if (!PyArg_ParseTuple(args, "OsO", &python, &run, &plan)) return nullptr;
  auto operation = std::make_unique<Operator>(run);
  auto gradient = plan == Py_None ? nullptr : plan_of(plan);
  THPObjectPtr eager(PyObject_GetAttrString(python, "eager"));
  if (!eager) return nullptr;
  Caller* const c = PyObject_New(Caller, &caller_type);
  if (!c) return nullptr;
  c->vectorcall = call;
  c->python = Py_NewRef(python);
  c->eager = eager.release();
  new (&c->run) std::unique_ptr<Operator>(std::move(operation));
  new (&c->plan) std::unique_ptr<Plan>(std::move(gradient));
  return reinterpret_cast<PyObject*>(c);
  END_HANDLE_TH_ERRORS
}

PyMethodDef methods[] = {{"call", make, METH_VARARGS, "Return what eager code calls."},
                         {nullptr, nullptr, 0, nullptr}};
PyModuleDef module = {PyModuleDef_HEAD_INIT, "_host", nullptr, -1, methods};

}  // namespace
}  // namespace fuseline::host

PyMODINIT_FUNC PyInit__host() {
  using namespace fuseline::host;
  caller_type.tp_name = "fuseline._host.Caller";
  caller_type.tp_basicsize = sizeof(Caller);
  caller_type.tp_dealloc = release;
  caller_type.tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_VECTORCALL;
  caller_type.tp_vectorcall_offset = offsetof(Caller, vectorcall);
  caller_type.tp_call = PyVectorcall_Call;
  caller_type.tp_members = members;
  if (PyType_Ready(&caller_type) < 0) return nullptr;
  PyObject* const made = PyModule_Create(&module);
  if (made) PyModule_AddIntConstant(made, "FORMAT", kFormat);
  return made;
}
