// SPDX-License-Identifier: BSD-3-Clause
#include "torch/generator.h"

#include <torch/csrc/Generator.h>

#include "bindings/method.h"
#include "core/device.h"

namespace outboard::bindings {

PyMethodDef generator_methods[] = {
    method<"default_generator",
           +[](c10::DeviceIndex device) {
             check_device_index(device);
             return THPGenerator_Wrap(default_generator(device));
           }>("Return the device's default torch.Generator."),
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace outboard::bindings
