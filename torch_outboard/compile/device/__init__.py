# SPDX-License-Identifier: BSD-3-Clause
"""The device as Dynamo and Inductor see it."""
