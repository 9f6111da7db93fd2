// SPDX-License-Identifier: BSD-3-Clause
// Autocast: the opt-in, and the table of policies.
#include "bindings/python.h"
#include "torch/autocast.h"

namespace outboard::bindings {

namespace {

PyObject* py_register_autocast(PyObject*, PyObject*) {
  return guarded([] {
    register_autocast();
    return none();
  });
}

PyObject* py_has_autocast(PyObject*, PyObject*) {
  return guarded([] { return PyBool_FromLong(has_autocast() ? 1 : 0); });
}

PyObject* with_op_and_policy(const char* function, PyObject* const* arguments, Py_ssize_t count,
                             void (*body)(const std::string& op, const std::string& policy)) {
  return guarded([&]() -> PyObject* {
    std::string op;
    std::string policy;
    if (!has_arguments(function, count, 2) || !to_text(arguments[0], "the operator", &op) ||
        !to_text(arguments[1], "the policy", &policy)) {
      return nullptr;
    }
    body(op, policy);
    return none();
  });
}

PyObject* py_set_cast_policy(PyObject*, PyObject* const* arguments, Py_ssize_t count) {
  return with_op_and_policy("set_cast_policy", arguments, count, set_cast_policy);
}

PyObject* py_check_cast_policy(PyObject*, PyObject* const* arguments, Py_ssize_t count) {
  return with_op_and_policy("check_cast_policy", arguments, count, check_cast_policy);
}

PyObject* py_cast_policies(PyObject*, PyObject*) {
  return guarded([]() -> PyObject* {
    const std::vector<CastPolicyRow> rows = cast_policies();
    Object list(PyList_New(static_cast<Py_ssize_t>(rows.size())));
    for (size_t i = 0; list && i < rows.size(); ++i) {
      PyObject* row = Py_BuildValue("(Nss)", from_text(rows[i].op), cast_policy_name(rows[i].policy),
                                    cast_policy_name(rows[i].default_policy));
      if (!row) {
        return nullptr;
      }
      PyList_SetItem(list.get(), static_cast<Py_ssize_t>(i), row);
    }
    return list.release();
  });
}

}  // namespace

PyMethodDef amp_methods[] = {
    {"register_autocast", py_register_autocast, METH_NOARGS, PyDoc_STR("Register torch's cast policies, once.")},
    {"has_autocast", py_has_autocast, METH_NOARGS, PyDoc_STR("Return whether register_autocast has run.")},
    OUTBOARD_FASTCALL("set_cast_policy", py_set_cast_policy, "Set the policy of an operator: (operator, policy)."),
    OUTBOARD_FASTCALL("check_cast_policy", py_check_cast_policy, "Raise if set_cast_policy would raise."),
    {"cast_policies", py_cast_policies, METH_NOARGS, PyDoc_STR("Return rows of operator, policy and default policy.")},
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace outboard::bindings
