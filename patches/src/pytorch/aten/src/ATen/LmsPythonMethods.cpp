#include <ATen/LmsPythonMethods.h>
#include <dlfcn.h>

#include <array>
#include <cstring>
#include <string>
#include <utility>

namespace {

struct PythonObject;

// With METH_NOARGS a method is not given the third argument, and does not look at it.
using PythonMethod = PythonObject* (*)(PythonObject* self, PythonObject* arguments, PythonObject* keywords);
constexpr int method_has_keywords = 2;  // METH_KEYWORDS

// All tables of 2.6 together have 1,800 rows.
constexpr size_t most_methods = 3072;

struct RepeatedMethod {
  lms_torch_method* method;
  PythonMethod stock;
  PythonMethod repeated;
  PythonObject* function;
};

// Written once, before the first method leads here.
std::array<RepeatedMethod, most_methods> repeated_methods;
size_t repeated_count = 0;
std::string* repeated_refusal = nullptr;
PythonObject* repeated_again = nullptr;
PythonObject* repeated_none = nullptr;
thread_local bool repeating = false;

// What this needs of Python, in the process that has it.
struct PythonFunctions {
  void (*fetch_error)(PythonObject**, PythonObject**, PythonObject**);
  void (*restore_error)(PythonObject*, PythonObject*, PythonObject*);
  void (*clear_error)();
  PythonObject* (*text_of)(PythonObject*);
  const char* (*characters_of)(PythonObject*);
  PythonObject* (*call)(PythonObject*, ...);
  void (*release)(PythonObject*);
};
PythonFunctions python_functions;

template <typename Function>
bool python_find(const char* name, Function* function) {
  *function = reinterpret_cast<Function>(dlsym(RTLD_DEFAULT, name));
  return *function != nullptr;
}

bool python_find_all() {
  PythonFunctions& python = python_functions;
  return python_find("PyErr_Fetch", &python.fetch_error) && python_find("PyErr_Restore", &python.restore_error) &&
         python_find("PyErr_Clear", &python.clear_error) && python_find("PyObject_Str", &python.text_of) &&
         python_find("PyUnicode_AsUTF8", &python.characters_of) &&
         python_find("PyObject_CallFunctionObjArgs", &python.call) && python_find("Py_DecRef", &python.release);
}

// Whether the error that is set is the one to call again for. Then it is cleared.
bool python_take_refusal() {
  const PythonFunctions& python = python_functions;
  PythonObject* type = nullptr;
  PythonObject* value = nullptr;
  PythonObject* traceback = nullptr;
  python.fetch_error(&type, &value, &traceback);
  bool refused = false;
  if (value != nullptr) {
    PythonObject* const text = python.text_of(value);
    const char* const characters = text != nullptr ? python.characters_of(text) : nullptr;
    refused = characters != nullptr && std::strstr(characters, repeated_refusal->c_str()) != nullptr;
    python.clear_error();  // of an error that has no text
    python.release(text);
  }
  if (!refused) {
    python.restore_error(type, value, traceback);
    return false;
  }
  for (PythonObject* object : {type, value, traceback}) {
    python.release(object);
  }
  return true;
}

PythonObject* python_or_none(PythonObject* object) { return object != nullptr ? object : repeated_none; }

PythonObject* repeated_call(PythonObject* self, PythonObject* arguments, PythonObject* keywords, size_t index) {
  const RepeatedMethod& method = repeated_methods[index];
  PythonObject* result = method.stock(self, arguments, keywords);
  if (result != nullptr || repeating || !python_take_refusal()) {
    return result;
  }
  repeating = true;
  const bool has_keywords = (method.method->flags & method_has_keywords) != 0;
  result =
      python_functions.call(repeated_again, method.function, python_or_none(self), python_or_none(arguments),
                            python_or_none(has_keywords ? keywords : nullptr), static_cast<PythonObject*>(nullptr));
  repeating = false;
  return result;
}

template <size_t index>
PythonObject* repeated_method(PythonObject* self, PythonObject* arguments, PythonObject* keywords) {
  return repeated_call(self, arguments, keywords, index);
}

template <size_t... indices>
std::array<PythonMethod, sizeof...(indices)> repeated_entries(std::index_sequence<indices...> /*all*/) {
  return {{&repeated_method<indices>...}};
}

// Other threads may be calling the method. One that other code has exchanged since stays as it is.
void repeated_exchange(lms_torch_method* method, PythonMethod from, PythonMethod to) {
  void* expected = reinterpret_cast<void*>(from);
  __atomic_compare_exchange_n(&method->function, &expected, reinterpret_cast<void*>(to), false, __ATOMIC_RELEASE,
                              __ATOMIC_RELAXED);
}

lms_status repeated_prepare(size_t count, lms_torch_method** methods, void** functions) {
  static const std::array<PythonMethod, most_methods> entries =
      repeated_entries(std::make_index_sequence<most_methods>());
  if (count > most_methods) {
    return lms_fail(LMS_UNSUPPORTED, "PyTorch has more functions than LMS has room for");
  }
  if (!python_find_all()) {
    return lms_fail(LMS_UNSUPPORTED, "a function of Python's stable ABI was not found in this process");
  }
  for (size_t index = 0; index < count; ++index) {
    repeated_methods[index] = RepeatedMethod{methods[index], reinterpret_cast<PythonMethod>(methods[index]->function),
                                             entries[index], static_cast<PythonObject*>(functions[index])};
  }
  return LMS_OK;
}

}  // namespace

lms_status lms_torch_repeat_calls(size_t count, lms_torch_method** methods, void** functions, const char* refusal,
                                  void* again, void* none) {
  if (repeated_count == 0) {
    const lms_status status = repeated_prepare(count, methods, functions);
    if (status != LMS_OK) {
      return status;
    }
    repeated_refusal = new std::string(refusal);
    repeated_again = static_cast<PythonObject*>(again);
    repeated_none = static_cast<PythonObject*>(none);
    repeated_count = count;
  }
  for (size_t index = 0; index < repeated_count; ++index) {
    const RepeatedMethod& method = repeated_methods[index];
    repeated_exchange(method.method, method.stock, method.repeated);
  }
  return LMS_OK;
}

void lms_torch_repeat_none(void) {
  for (size_t index = 0; index < repeated_count; ++index) {
    const RepeatedMethod& method = repeated_methods[index];
    repeated_exchange(method.method, method.repeated, method.stock);
  }
}
