// SPDX-License-Identifier: BSD-3-Clause
// The function of host_callback as a Python callable.
#pragma once

#include <torch_outboard/driver.h>

#include "bindings/python.h"

namespace outboard::bindings {

struct HostWork;

// Makes a callable that runs fn(user) once, with the interpreter lock given up; a second call raises RuntimeError.
// `out_work` is valid until settle_host_work.
Object make_host_work(ob_host_fn fn, void* user, HostWork** out_work);

// What the entry answers, once the driver's method has returned with `status`: if the method failed, the callable can't
// run any more, but if it has run already that counts as success, since the core would run it a second time. A callable
// that a driver accepted and then dropped runs when it is dropped, with a complaint on stderr: the core waits for it.
ob_status settle_host_work(HostWork* work, ob_status status);

}  // namespace outboard::bindings
