# SPDX-License-Identifier: BSD-3-Clause
"""Drivers whose kernels come from the generator 'simt', for `pytest --driver=tests.simt_drivers:HostCpp`."""

from torch_outboard._discovery import find_driver


class HostCpp(find_driver("sim")):
    code_generator = "host_cpp"


class OpenCLC(find_driver("opencl")):
    code_generator = "opencl_c"


class Apart(find_driver("opencl")):
    """OpenCL devices whose memory the host can't reach, so that operators run as generated kernels."""

    def __init__(self, **options):
        super().__init__(**{"host_access": False, **options})
