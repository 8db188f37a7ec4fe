# SPDX-License-Identifier: Apache-2.0
# FL_CUDA: CUDA Toolkit and NCCL; without them everything but the CUDA backend is built.
AC_DEFUN([FL_CUDA], [
  AC_ARG_WITH([cuda], [AS_HELP_STRING([--with-cuda=DIR], [CUDA Toolkit (default: found through nvcc; "no" to do without)])],
    [], [with_cuda=auto])
  fl_have_cuda=no
  AS_IF([test "x$with_cuda" != xno], [
    AS_CASE([$with_cuda], [auto|yes], [AC_PATH_PROG([NVCC], [nvcc], [], [$PATH:/usr/local/cuda/bin])],
      [NVCC=$with_cuda/bin/nvcc])
    AS_IF([test -n "$NVCC" && test -x "$NVCC"], [
      # nvcc itself says where its toolkit is: the one on the PATH may be a script that calls it.
      echo 'int fl_conftest;' >conftest.cu
      fl_cuda_dir=$("$NVCC" --dryrun -c -o conftest.$ac_objext conftest.cu 2>&1 | sed -n 's/^#\$ TOP=//p')
      rm -f conftest.cu
      AC_MSG_CHECKING([for the CUDA Toolkit])
      AS_IF([test -n "$fl_cuda_dir" && test -d "$fl_cuda_dir"], [fl_cuda_dir=$(cd "$fl_cuda_dir" && pwd -P)],
        [fl_cuda_dir=$(dirname "$(dirname "$(readlink -f "$NVCC")")")])
      AC_MSG_RESULT([$fl_cuda_dir])
      fl_saved_CPPFLAGS=$CPPFLAGS
      CPPFLAGS="$CPPFLAGS -I$fl_cuda_dir/include"
      AC_CHECK_HEADERS([cuda_runtime_api.h nccl.h], [], [fl_cuda_missing="$fl_cuda_missing $ac_header"])
      CPPFLAGS=$fl_saved_CPPFLAGS
      AS_IF([test -z "$fl_cuda_missing"], [
        fl_have_cuda=yes
        CUDA_CPPFLAGS="-isystem $fl_cuda_dir/include"
        CUDA_LIBS="-L$fl_cuda_dir/lib64 -lcudart -lcublasLt -lstdc++"])])
    AS_IF([test "x$fl_have_cuda" = xno && test "x$with_cuda" != xauto],
      [AC_MSG_ERROR([--with-cuda: not found:${fl_cuda_missing:- nvcc}${fl_cuda_dir:+ in $fl_cuda_dir/include}: install the CUDA Toolkit and NCCL])])
  ])
  AC_SUBST([NVCC])
  AC_SUBST([CUDA_CPPFLAGS])
  AC_SUBST([CUDA_LIBS])
  AS_IF([test "x$fl_have_cuda" = xyes], [AC_DEFINE([HAVE_CUDA], [1], [CUDA Toolkit and NCCL])])
  AM_CONDITIONAL([HAVE_CUDA], [test "x$fl_have_cuda" = xyes])
])
