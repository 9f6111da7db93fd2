# SPDX-License-Identifier: BSD-3-Clause
"""What `outboard doctor` looks at: this machine, the drivers, and the libraries that train and run models.

Nothing here knows what a version of a library does. `questions` asks the library that is installed, in a process of
its own with the driver attached, which device it takes. `libraries` starts these processes and judges the answers.
"""
