// The pager: this folder is globbed by the build, ATen/lms is not.
#include <ATen/lms/all.cc>
