// Functions of PyTorch's that Python calls, and whose failed calls are made once more.
//
// What Python calls is a row of a table in libtorch_python: its PyMethodDef has the address of the C++ function. That
// is exchanged, so the objects that Python sees stay what they are: they compare, pickle, warn and compile as before.
#ifndef ATEN_LMS_PYTHON_METHODS_H
#define ATEN_LMS_PYTHON_METHODS_H

#include <ATen/lms/lms.h>
#include <stddef.h>

// For torch/lms, which calls it through ctypes. The types are those of Python's stable ABI, without its headers.
extern "C" {

// PyMethodDef.
struct lms_torch_method {
  const char* name;
  void* function;
  int flags;
  const char* doc;
};

// From now on a call of one of `count` methods that fails with `refusal` in its error's text returns what
// again(functions[i], self, arguments, keywords) returns; the thread's calls inside of that fail as they fail. All are
// PyObject*, which the caller keeps alive forever; `none` is None, and stands for what is null. The methods' flags are
// METH_VARARGS | METH_KEYWORDS or METH_NOARGS, and may have METH_STATIC. Later calls take up the methods of the first.
// One thread at a time makes these two calls. LMS_UNSUPPORTED: there are too many methods, or there is no Python here.
LMS_API lms_status lms_torch_repeat_calls(size_t count, lms_torch_method** methods, void** functions,
                                          const char* refusal, void* again, void* none);

// Puts the methods back.
LMS_API void lms_torch_repeat_none(void);

}  // extern "C"
#endif  // ATEN_LMS_PYTHON_METHODS_H
