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
#include <optional>

#include "fuseline/core/host/gradient.h"

namespace fuseline::host {
namespace {

constexpr int kFormat = 2;  // of what core/host.py gives; another's is not used

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

// Elements that a CPU is done with before another thread would have the interpreter's lock, which
// takes a twentieth of the smallest call to give and to take.
constexpr int64_t kFew = 4096;

struct Seen {
  bool gradient = false, tangent = false, few = true;
};

Seen look_at(const Stack& arguments) {
  Seen seen;
  for (const c10::IValue& value : arguments) {
    if (!value.isTensor()) continue;
    const at::Tensor& t = value.toTensor();
    seen.gradient |= t.requires_grad();
    seen.tangent |= torch::autograd::isFwGradDefined(t);
    seen.few &= t.is_cpu() && t.numel() <= kFew;
  }
  return seen;
}

PyObject* wrapped(Stack& results) {
  if (results.size() == 1) return THPVariable_Wrap(std::move(results[0]).toTensor());
  THPObjectPtr tuple(PyTuple_New(static_cast<Py_ssize_t>(results.size())));
  if (!tuple) return nullptr;
  for (size_t i = 0; i < results.size(); ++i) {
    PyTuple_SET_ITEM(tuple.get(), i, THPVariable_Wrap(std::move(results[i]).toTensor()));
  }
  return tuple.release();
}

// The results, or null without an error of Python's: then `python` must be called.
PyObject* served(const Caller& c, PyObject* const* args, Py_ssize_t count) {
  if (watched()) return nullptr;
  auto stack = c.run->arguments(args, count);
  if (!stack) return nullptr;
  const Seen seen = look_at(*stack);
  const bool differentiate = seen.gradient && at::GradMode::is_enabled();
  if (seen.tangent || (differentiate && !(c.plan && c.plan->serves(*stack)))) return nullptr;
  {
    std::optional<pybind11::gil_scoped_release> without_gil;
    if (!seen.few) without_gil.emplace();
    if (differentiate) {
      *stack = differentiable(*c.plan, *stack);
    } else {
      at::AutoDispatchBelowADInplaceOrView below;
      c.run->call(*stack);
    }
  }
  return wrapped(*stack);
}

PyObject* call(PyObject* self, PyObject* const* args, size_t counted, PyObject* names) {
  HANDLE_TH_ERRORS
  const Caller& c = *reinterpret_cast<Caller*>(self);
  PyObject* const made = names ? nullptr : served(c, args, PyVectorcall_NARGS(counted));
  if (made || PyErr_Occurred()) return made;
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

// (name, fwd, bwd, outputs, kept, tensors, taken, gives, sources, works, beyond, alike, by_formula)
std::unique_ptr<Plan> plan_of(PyObject* of) {
  const char *name, *fwd, *bwd;
  Py_ssize_t outputs, tensors, works;
  PyObject *kept, *taken, *gives, *sources, *beyond, *alike, *by_formula;
  if (!PyArg_ParseTuple(of, "sssnOnOOOnOOO", &name, &fwd, &bwd, &outputs, &kept, &tensors, &taken,
                        &gives, &sources, &works, &beyond, &alike, &by_formula)) {
    throw python_error();
  }
  return std::make_unique<Plan>(
      Plan{name, Operator(fwd), Operator(bwd), static_cast<size_t>(outputs), places_of(kept),
           static_cast<size_t>(tensors), places_of(taken), places_of(gives), places_of(sources),
           works, places_of(beyond), places_of(alike), Py_NewRef(by_formula)});
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

// What entered() looks up; set when the module is made.
struct Names {
  PyObject *calls, *cpu, *cuda, *flag;
  PyObject* compiler;  // the namespace of torch.compiler
} known;

// The caller that a selector has for a tensor and the name of an implementation, if it has one.
THPObjectPtr caller_of(PyObject* selector, PyObject* impl, PyObject* x) {
  if (!THPVariable_CheckExact(x)) return {};
  if (PyDict_GetItemWithError(known.compiler, known.flag) != Py_False) return {};
  const at::Tensor& t = THPVariable_Unpack(x);
  PyObject* const device = t.is_cpu() ? known.cpu : t.is_cuda() ? known.cuda : Py_None;
  THPObjectPtr calls(PyObject_GetAttr(selector, known.calls)), key(PyTuple_Pack(2, impl, device));
  PyObject* found = nullptr;
  if (calls && key) found = PyDict_GetItemWithError(calls.get(), key.get());
  PyErr_Clear();  // Python meets it again
  // Owned, since another thread may take it out of the dictionary during the call.
  return THPObjectPtr(found && Py_IS_TYPE(found, &caller_type) ? Py_NewRef(found) : nullptr);
}

// `python`(selector, validate, public, impl, x, ...), the eager half of operator.call. What raises
// is left to it as well, since it says why.
PyObject* entered(PyObject* python, PyObject* const* args, Py_ssize_t count) {
  HANDLE_TH_ERRORS
  constexpr Py_ssize_t kX = 4;
  if (count > kX) {
    if (THPObjectPtr c = caller_of(args[0], args[kX - 1], args[kX]); c.get()) {
      try {
        PyObject* const made = served(*reinterpret_cast<Caller*>(c.get()), args + kX, count - kX);
        if (made || PyErr_Occurred()) return made;
      } catch (const python_error&) {  // of a user's hooks
        throw;
      } catch (const std::exception&) {
      }
    }
  }
  return PyObject_Vectorcall(python, args, count, nullptr);
  END_HANDLE_TH_ERRORS
}

PyMethodDef entry = {"call", reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(entered)),
                     METH_FASTCALL, "The eager half of operator.call."};

PyObject* enter(PyObject*, PyObject* python) { return PyCFunction_New(&entry, python); }

PyMethodDef methods[] = {{"call", make, METH_VARARGS, "Return what eager code calls."},
                         {"enter", enter, METH_O, "Return what operator.call calls."},
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
  THPObjectPtr compiler(PyImport_ImportModule("torch.compiler"));
  if (!compiler) return nullptr;
  known = {PyUnicode_InternFromString("calls"), PyUnicode_InternFromString("cpu"),
           PyUnicode_InternFromString("cuda"), PyUnicode_InternFromString("_is_compiling_flag"),
           Py_NewRef(PyModule_GetDict(compiler.get()))};
  PyObject* const made = PyModule_Create(&module);
  if (made) PyModule_AddIntConstant(made, "FORMAT", kFormat);
  return made;
}
