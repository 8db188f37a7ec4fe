// SPDX-License-Identifier: Apache-2.0
// The element type of host arithmetic: float, or double for the finite-difference check of the
// backward pass, which compiles ops/cpu and net a second time with FL_REAL_DOUBLE.
#ifndef FL_OPS_REAL_H
#define FL_OPS_REAL_H

#ifdef FL_REAL_DOUBLE
typedef double real;
#define real_exp exp
#define real_log log
#else
typedef float real;
#define real_exp expf
#define real_log logf
#endif

#endif
