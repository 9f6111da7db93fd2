// SPDX-License-Identifier: BSD-3-Clause
#include "bindings/host_work.h"

#include <atomic>

#include "core/capture.h"

namespace outboard::bindings {

enum class WorkState : int { Offered, Accepted, Run, Refused };

struct HostWork {
  ob_host_fn fn;
  void* user;
  std::atomic<WorkState> state{WorkState::Offered};
  std::atomic<int> owners{2};  // the callable, and the trampoline until it is finished
  bool is_repeated = is_repeated_host_work();  // of a captured graph: called once each launch
};

namespace {

constexpr char kHostWorkCapsule[] = "torch_outboard.host_work";

void report_dropped_work() {
  if (python_is_gone()) {
    return;
  }
  const PyGILState_STATE gil = PyGILState_Ensure();
  PyErr_SetString(PyExc_RuntimeError,
                  "host_callback dropped its function without calling it; the function runs now, late");
  PyErr_WriteUnraisable(nullptr);
  PyGILState_Release(gil);
}

// Release an owner. The last owner runs work that was accepted and that nothing else will call.
// `fn` takes no Python lock, so this thread may or may not hold it.
void drop(HostWork* work) {
  if (work->owners.fetch_sub(1) != 1) {
    return;
  }
  if (work->state.load() == WorkState::Accepted && !work->is_repeated) {
    report_dropped_work();
    work->fn(work->user);
  }
  delete work;
}

// Return true if this caller runs it.
bool claim(HostWork* work) {
  if (work->is_repeated) {
    return true;
  }
  WorkState state = work->state.load();
  while (state == WorkState::Offered || state == WorkState::Accepted) {
    if (work->state.compare_exchange_weak(state, WorkState::Run)) {
      return true;
    }
  }
  return false;
}

PyObject* run(PyObject* self, PyObject*) {
  auto* work = static_cast<HostWork*>(PyCapsule_GetPointer(self, kHostWorkCapsule));
  if (!work) {
    return nullptr;
  }
  if (!claim(work)) {
    PyErr_SetString(PyExc_RuntimeError, "host work can run only once: it has already run, or host_callback raised");
    return nullptr;
  }
  unlocked_call([&] { work->fn(work->user); });
  return none();
}

void destroy_host_work(PyObject* capsule) {
  drop(static_cast<HostWork*>(PyCapsule_GetPointer(capsule, kHostWorkCapsule)));
}

PyMethodDef run_method = {"host_work", run, METH_NOARGS, PyDoc_STR("Run the queued host work, once.")};

}  // namespace

Object make_host_work(ob_host_fn fn, void* user, HostWork** out_work) {
  auto* work = new HostWork{fn, user};
  const Object capsule(PyCapsule_New(work, kHostWorkCapsule, destroy_host_work));
  if (!capsule) {
    delete work;
    return Object();
  }
  *out_work = work;
  return Object(PyCFunction_NewEx(&run_method, capsule.get(), nullptr));
}

ob_status finish_host_work(HostWork* work, ob_status status) {
  WorkState offered = WorkState::Offered;
  const bool has_run =
      !work->state.compare_exchange_strong(offered, status == OB_OK ? WorkState::Accepted : WorkState::Refused);
  drop(work);
  return has_run ? OB_OK : status;
}

}  // namespace outboard::bindings
