# SPDX-License-Identifier: BSD-3-Clause
"""The checks of `outboard doctor`: this machine, the drivers, and the libraries that train and run models.

No code here depends on a library's version. `probes` asks each installed library, in a separate process with the driver
attached, which device it uses. `libraries` starts these processes and judges the answers.
"""
