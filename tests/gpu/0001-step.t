#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# The checks of whole steps on the GPU, with the CPU in its place.
exec "${FL_BUILD_DIR:-.}/tests/gpu/test_step" --cpu --small
