// SPDX-License-Identifier: BSD-3-Clause
// The provider 'generated' in Python: which providers run, and
// torch_outboard.kernels.builder, which builds its plans.
#include "bindings/method.h"

#include <torch/csrc/utils/pybind.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "bindings/kernel_arguments.h"
#include "bindings/records.h"
#include "kernels/builds.h"
#include "kernels/plan.h"
#include "ops/call/recent_failure.h"
#include "ops/description.h"
#include "ops/operator/facts.h"
#include "ops/planned/generated_provider.h"
#include "ops/planned/recipes.h"
#include "ops/providers.h"
#include "ops/register_native.h"

namespace outboard::bindings {

namespace {

// Call a function of the builder. Its exceptions are bugs or
// interrupts: everything else is a refusal.
template <typename Ask>
auto with_builder(Ask&& ask) {
  const pybind11::gil_scoped_acquire gil;
  try {
    return ask(py::module_::import("torch_outboard.kernels.builder"));
  } catch (py::error_already_set& error) {
    error.restore();
    throw_python_error();
  }
}

uint64_t call_for_numbers(const char* function, const Operator& op) {
  if (python_is_gone()) {
    return 0;
  }
  return with_builder([&](const py::module_& builder) { return builder.attr(function)(op.name).cast<uint64_t>(); });
}

uint64_t call_numbers(const Operator& op) {
  return call_for_numbers("numbers", op);
}

uint64_t call_numbers_of_lists(const Operator& op) {
  return call_for_numbers("numbers_of_lists", op);
}

// Read an Answer of torch_outboard/kernels/disk/files.py.
BuiltPlan read_plan(PyObject* answer) {
  const Record record(answer, "Answer");
  BuiltPlan built;
  built.text = record.text("text");
  built.refusal = record.text("refusal");
  built.refuses_class = record.flag("is_of_class");
  for (const Object& kernel : record.items("kernels")) {
    built.kernels.push_back(device_kernel_of(kernel.get()));
  }
  return built;
}

// Do the same for an answer from disk, which may be anything.
BuiltPlan read_stored_plan(PyObject* answer) {
  BuiltPlan built;
  try {
    built = read_plan(answer);
  } catch (const c10::Error& error) {
    built.text = Record(answer, "Answer").text("text");
    built.unusable_reason = error.what_without_backtrace();
  }
  built.is_from_disk = true;
  return built;
}

// Call a function of the builder with an operator's name, its arguments and more.
template <typename... More>
py::object call_builder(const py::module_& builder, const char* function, const Operator& op,
                        c10::ArrayRef<c10::IValue> values, More... more) {
  const c10::FunctionSchema& schema = op.handle.schema();
  py::list arguments;
  for (size_t i = 0; i < schema.arguments().size(); ++i) {
    arguments.append(to_kernel_argument(values[i], schema.arguments()[i]));
  }
  return builder.attr(function)(op.name, arguments, more...);
}

template <typename... More>
BuiltPlan call_for_plan(BuiltPlan (*read)(PyObject*), const char* function, const Operator& op,
                        c10::ArrayRef<c10::IValue> arguments, More... more) {
  if (python_is_gone()) {
    BuiltPlan gone;
    gone.refusal = "the interpreter is shutting down [no-thread]";
    return gone;
  }
  return with_builder(
      [&](const py::module_& builder) { return read(call_builder(builder, function, op, arguments, more...).ptr()); });
}

c10::ArrayRef<c10::IValue> arguments_of(const Call& call) {
  return c10::ArrayRef<c10::IValue>(&call.arg(0), call.op().args.size());
}

std::vector<BuiltPlan> call_load(const Call& call, uint64_t numbers, bool is_aliased) {
  std::vector<BuiltPlan> kept;
  if (!python_is_gone()) {
    with_builder([&](const py::module_& builder) {
      for (const py::handle answer : call_builder(builder, "load", call.op(), arguments_of(call), numbers, is_aliased,
                                                  static_cast<int>(call.device()))) {
        kept.push_back(read_stored_plan(answer.ptr()));
      }
    });
  }
  return kept;
}

BuiltPlan call_build(const Call& call, uint64_t numbers, bool is_aliased) {
  return call_for_plan(read_plan, "build", call.op(), arguments_of(call), numbers, is_aliased,
                       static_cast<int>(call.device()), strides_of_results(call));
}

BuiltPlan call_build_chunks(const Operator& op, const torch::jit::Stack& arguments, c10::DeviceIndex device) {
  return call_for_plan(read_stored_plan, "build_chunks", op, arguments, static_cast<int>(device));
}

void call_drop(const Call& call, uint64_t numbers, bool is_aliased, const std::string& text, const std::string& why) {
  if (!python_is_gone()) {
    with_builder([&](const py::module_& builder) {
      call_builder(builder, "drop", call.op(), arguments_of(call), numbers, is_aliased, static_cast<int>(call.device()),
                   text, why);
    });
  }
}

bool call_drop_chunks(const Operator& op, const torch::jit::Stack& arguments, c10::DeviceIndex device,
                      const std::string& text, const std::string& why) {
  return !python_is_gone() && with_builder([&](const py::module_& builder) {
    return call_builder(builder, "drop_chunks", op, arguments, static_cast<int>(device), text, why)
        .template cast<bool>();
  });
}

uint32_t call_abilities() {
  if (python_is_gone()) {
    return 0;
  }
  return with_builder([](const py::module_& builder) { return builder.attr("abilities")().cast<uint32_t>(); });
}

std::string call_explained(const std::string& refusal) {
  if (python_is_gone()) {
    return refusal;
  }
  const pybind11::gil_scoped_acquire gil;
  try {
    return py::module_::import("torch_outboard.kernels.reasons").attr("explained")(refusal).cast<std::string>();
  } catch (py::error_already_set& error) {
    error.restore();
    throw_python_error();
  }
}

constexpr PlanBuilder kBuilder{call_numbers,   call_load, call_build,       call_numbers_of_lists, call_build_chunks,
                               call_abilities, call_drop, call_drop_chunks, call_explained};

void choose_providers(int64_t native, int64_t generated, int64_t host) {
  set_providers({native != 0,
                 generated == 0   ? GeneratedMode::Off
                 : generated == 1 ? GeneratedMode::On
                                  : GeneratedMode::WhereUnreachable,
                 host != 0});
}

// Raise the errors of a plan.
size_t count_steps(const std::string& text, PyObject* letter_list) {
  const auto letters = py::reinterpret_borrow<py::object>(letter_list).cast<std::vector<std::string>>();
  std::vector<kernels::ArgumentKinds> kinds;
  for (size_t i = 0; i < letters.size(); ++i) {
    kinds.push_back(kernels::read_kinds(std::to_string(i), letters[i]));
  }
  return kernels::Plan(text, kinds).steps().size();
}

PyObject* notes_of_operator(const std::string& name) {
  py::list rows;
  for (const OperatorNote& note : describe_operator(name)) {
    rows.append(py::make_tuple(note.of, note.text, note.place));
  }
  return rows.release().ptr();
}

PyObject* list_kernel_traits() {
  py::list rows;
  for (const auto& [trait, row] : kernel_traits()) {
    rows.append(py::make_tuple(std::string(trait), std::string(row)));
  }
  return rows.release().ptr();
}

std::tuple<size_t, size_t, size_t, double> counts_of_builds() {
  const kernels::BuildCounts counts = kernels::count_builds();
  return {counts.waiting, counts.running, counts.built, counts.seconds};
}

}  // namespace

PyMethodDef kernels_methods[] = {
    method<"set_providers", choose_providers>(
        "Set the providers, each 0 or 1: (native, generated, host). Generated 2: if the host cannot reach the memory."),
    method<"refused_operators", refused_operators>(
        "Return (operator, reason) for each operator whose plan was refused."),
    method<"describe_operator", notes_of_operator>(
        "Return (part, text, place) for each fact that decides how an operator runs."),
    method<"kernel_traits", list_kernel_traits>(
        "Return (trait, row) from the book's rows of generated kernels, as the core was built."),
    method<"built_plans", built_plans>("Return how many plans were built since the start."),
    method<"set_plan_variant", +[](int64_t variant) { set_plan_variant(static_cast<uint32_t>(variant)); }>(
        "Set the variant; calls have separate plans for each variant."),
    method<"set_retry_interval", +[](int64_t count) { set_retry_interval(std::chrono::milliseconds(count)); }>(
        "Set how many milliseconds pass before a failed build is tried again (default: 1000)."),
    method<"set_build_threads",
           +[](int64_t count) { kernels::set_build_threads(static_cast<int>(std::clamp<int64_t>(count, 0, 1024))); }>(
        "Set the number of threads that build programs in the background; 0 for none."),
    method<"set_build_limit", +[](int64_t count) { kernels::set_build_limit(std::chrono::milliseconds(count)); }>(
        "Set after how many milliseconds a program's build is abandoned (default: 300,000)."),
    method<"show_builds", kernels::show_builds>(
        "Set the text around the count that a terminal shows during builds: (prefix, suffix)."),
    method<"count_builds", counts_of_builds>(
        "Return (waiting, running, built, seconds) of the threads that build programs."),
    method<"provide_kept", +[](c10::DeviceIndex device, Bytes key,
                               Bytes bytes) { provide_kept(device, key.content, std::move(bytes.content)); }>(
        "Provide bytes that the driver may recall: (device, key, bytes)."),
    method<"forbid_compiling", forbid_compiling>("Forbid generated kernels in this thread's calls from now on."),
    method<"check_plan", count_steps>("Return the number of steps of a plan: (text, letters of its kernels)."),
    {nullptr, nullptr, 0, nullptr},
};

void install_plan_builder() {
  set_plan_builder(&kBuilder);
}

}  // namespace outboard::bindings
