// SPDX-License-Identifier: BSD-3-Clause
// The function of host_callback as a Python callable.
#pragma once

#include <torch_outboard/driver.h>

#include "bindings/python.h"

namespace outboard::bindings {

struct HostWork;

// Return a callable that runs fn(user) once, with the interpreter lock released. A second call
// raises RuntimeError. `out_work` is valid until finish_host_work.
Object make_host_work(ob_host_fn fn, void* user, HostWork** out_work);

// Return the entry's status, once the driver's method has returned with `status`. If the method
// failed, the callable can no longer run. If the callable has already run, the status is a success:
// on a failure, the core would run the work again. If a driver accepts a callable and drops it, the
// callable runs when it is dropped, with a message on stderr, because the core waits for it.
ob_status finish_host_work(HostWork* work, ob_status status);

}  // namespace outboard::bindings
