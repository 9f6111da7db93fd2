# SPDX-License-Identifier: BSD-3-Clause
"""The choice of a device's code generator."""

from __future__ import annotations

import pytest

from torch_outboard._properties import DeviceProperties
from torch_outboard.drivers.opencl import OpenCLDriver

BEGIN = """
import pytest, torch, torch_outboard
from torch._inductor import config
from unit.programs import ProgramDriver, ProgramGenerator

config.compile_threads = 1

class Mixed(ProgramDriver):
    answers = {0: "cpp", 1: ProgramGenerator, 2: None, 3: "ccp"}

    def __init__(self):
        super().__init__(devices=4)
        self.asked = []

    def code_generator(self, device):
        self.asked.append(device)
        return self.answers[device]

def f(x, y):
    return torch.nn.functional.gelu(x) * y + 1, (x * y).sum(0)

def check(device, **options):
    torch._dynamo.reset()
    x, y = torch.randn(20, 30), torch.randn(20, 30)
    got = torch.compile(f, fullgraph=True, **options)(x.to(device), y.to(device))
    for ours, theirs in zip(got, f(x, y), strict=True):
        assert ours.device == torch.device(device)
        torch.testing.assert_close(ours.cpu(), theirs, atol=1e-5, rtol=1e-5)
"""

BY_DEVICE = """
driver = Mixed()
driver.answers = {**Mixed.answers, 3: "cpp"}
torch_outboard.attach(driver)
x = torch.ones(3, device="programs") + 1
assert driver.asked == [], "nothing is compiled yet"
for wrapper in (None, "cpp_wrapper", "fx_wrapper"):
    with config.patch({} if wrapper is None else {wrapper: True}):
        count = len(driver.launched)
        check("programs:0")
        assert len(driver.launched) == count
        check("programs:1")
        assert len(driver.launched) > count
with pytest.raises(Exception, match="the driver 'programs' has no code generator"):
    check("programs:2")
check("programs:3")
assert sorted(driver.asked) == [0, 1, 2, 3], driver.asked
from torch_outboard.compile.device.cache_key import cache_key
assert dict(cache_key())["generator"] == "cpp,programs,none", cache_key()

# Both in one graph.
torch._dynamo.reset()
def both(x, y):
    return (x.cos() + 1).to("programs:1") * y.sin()
x, y = torch.randn(40), torch.randn(40)
count = len(driver.launched)
got = torch.compile(both, fullgraph=True)(x.to("programs:0"), y.to("programs:1"))
torch.testing.assert_close(got.cpu(), (x.cos() + 1) * y.sin(), atol=1e-5, rtol=1e-5)
assert len(driver.launched) == count + 1

# In channels last where the CPU's kernels run, and with the strides of the CPU's results.
torch._dynamo.reset()
convolution = torch.nn.Conv2d(3, 8, 3)
x = torch.randn(2, 3, 8, 8)
expected = convolution(x).detach()
for device in ("programs:0", "programs:1"):
    got = torch.compile(convolution.to(device))(x.to(device))
    torch.testing.assert_close(got.detach().cpu(), expected, atol=1e-5, rtol=1e-5)
"""

WRONG_ANSWERS = """
driver = Mixed()
torch_outboard.attach(driver)
with pytest.raises(Exception, match="programs:3: unknown code generator 'ccp'. Choose from cpp, .*Did you mean 'cpp'"):
    check("programs:3")
driver.answers = {**Mixed.answers, 3: 7}
with pytest.raises(Exception, match="code_generator.3. of its driver must be a name or a subclass of .*, not 7"):
    check("programs:3")
"""

WRAPPERS_THAT_DIFFER = """
from torch_outboard.compile.wrapper.python import OutboardWrapper

class OtherWrapper(OutboardWrapper):
    @staticmethod
    def create(*args):
        return OutboardWrapper.create(*args)

class Other(ProgramGenerator):
    def wrapper(self):
        return OtherWrapper

driver = Mixed()
driver.answers = {0: "cpp", 1: Other, 2: None, 3: None}
torch_outboard.attach(driver)
check("programs:0"), check("programs:1")
torch._dynamo.reset()
x, y = (torch.ones(3, device=f"programs:{index}") for index in range(2))
with pytest.raises(Exception, match="have different wrappers .wrapper.: compile the part for each device separately"):
    torch.compile(lambda x, y: x.cos().to("programs:1") + y)(x, y)
"""

OF_THE_INSTANCE = """
class Chosen(ProgramDriver):
    code_generator = property(lambda self: ProgramGenerator if self.devices == 2 else "cpp")

driver = Chosen()
torch_outboard.attach(driver)
check("programs:0")
assert driver.launched
"""


@pytest.mark.parametrize(
    "code",
    [BY_DEVICE, WRONG_ANSWERS, WRAPPERS_THAT_DIFFER, OF_THE_INSTANCE],
    ids=["by device", "wrong answers", "wrappers that differ", "of the instance"],
)
def test_generators_of_devices(run_compiler, code):
    run_compiler(BEGIN + code)


OF_EAGER_KERNELS = """
class Chosen(ProgramDriver):
    asked = []

    def kernel_generator(self, devices):
        self.asked.append([device.name for device in devices])
        return "host_cpp" if self.devices == 1 else "opencl_c"

driver = Chosen(devices=2)
torch_outboard.attach(driver)
assert driver.asked == [[]], "the choice is checked before devices are asked"
from torch_outboard.compile.generators import generators
for _ in range(2):
    assert generators().eager().dialect.name == "opencl_c"
assert len(driver.asked) == 2 and len(driver.asked[1]) == 2 and all(driver.asked[1]), driver.asked
"""

OF_THE_HOST = """
driver = Chosen(devices=1)
with pytest.raises(torch_outboard.RegistrationError, match="whose dialect the device can build, .* not 'host_cpp'"):
    torch_outboard.attach(driver)
"""


def test_a_generator_of_eager_kernels_by_what_the_devices_are(run_compiler):
    run_compiler(BEGIN + OF_EAGER_KERNELS)
    before, _ = OF_EAGER_KERNELS.split("driver = ")
    run_compiler(BEGIN + before + OF_THE_HOST)


def test_matrix_units_where_all_devices_have_them():
    old, new, newest = (DeviceProperties(vendor="NVIDIA Corporation", major=major, minor=6) for major in (7, 8, 12))
    foreign = DeviceProperties(vendor="another", major=9)  # whose class may derive from it, with numbers of its own
    cases = [([], False), ([old], False), ([new, newest], True), ([new, old], False), ([new, foreign], False)]
    for devices, has_units in cases:
        for option, uses_units in ((None, has_units), (True, True), (False, False)):
            options = {} if option is None else {"matrix_units": option}
            name = OpenCLDriver(**options).kernel_generator(devices)
            assert name == ("ptx_opencl_c" if uses_units else "opencl_c")
