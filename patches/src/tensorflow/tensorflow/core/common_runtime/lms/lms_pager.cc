// The pager, in one rule of the build or one run of the compiler.
#include "tensorflow/core/common_runtime/lms/pager/all.cc"
