// Functions of PyTorch's that Python calls, and whose failed calls are made once more.
//
// The objects that Python has stay what they are: they compare, hash, pickle, warn and compile as before. A builtin
// function's object has a field for what calls it (vectorcall), which is empty for those of PyTorch's. A method's
// address is exchanged in the row of the table that it was made from (PyMethodDef), since each use of it makes a new
// object from that.
#ifndef ATEN_LMS_PYTHON_METHODS_H
#define ATEN_LMS_PYTHON_METHODS_H

#include <ATen/lms/lms.h>
#include <stddef.h>

// For torch/lms, which calls it through ctypes. The types are those of CPython, 3.8 and later, without its headers.
extern "C" {

// PyMethodDef.
struct lms_torch_method {
  const char* name;
  void* function;
  int flags;
  const char* doc;
};

// What calls are made again of. All are PyObject*, which the caller keeps alive forever, but for `methods`.
struct lms_torch_repeated {
  size_t function_count;
  void** functions;         // builtin functions, with METH_VARARGS | METH_KEYWORDS and nothing in their vectorcall
  size_t fields;            // bytes from such an object to its PyMethodDef*, the first of its five fields
  size_t method_count;
  lms_torch_method** methods;  // with METH_VARARGS | METH_KEYWORDS, or METH_NOARGS
  void** descriptors;          // what was made from each
  const char* refusal;
  void* again;
  void* none;  // None, which stands for what is null
};

// From now on a call that fails with `refusal` in its error's text returns what again(function or descriptor, self,
// arguments, keywords) returns, in which no operation is observed. The thread's calls inside of that fail as they fail,
// and so does a call that failed because of one inside. Later calls take up what the first was given. One thread at a
// time makes these two calls. LMS_UNSUPPORTED: there are too many methods, or there is no Python here.
LMS_API lms_status lms_torch_repeat_calls(const lms_torch_repeated* what);

// No call is made again from now on.
LMS_API void lms_torch_repeat_none(void);

}  // extern "C"
#endif  // ATEN_LMS_PYTHON_METHODS_H
