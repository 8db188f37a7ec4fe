# SPDX-License-Identifier: Apache-2.0
# FL_TOKENIZER_LIBS: regular expressions and Unicode normalisation of the tokenizer.
AC_DEFUN([FL_TOKENIZER_LIBS], [
  PKG_CHECK_MODULES([PCRE2], [libpcre2-8 >= 10.30], [], [AC_MSG_ERROR([pcre2 not found: install libpcre2-dev])])
  PKG_CHECK_MODULES([UTF8PROC], [libutf8proc], [], [AC_MSG_ERROR([utf8proc not found: install libutf8proc-dev])])
])
