#include <ATen/LmsPythonMethods.h>
#include <ATen/LmsRecordFunction.h>
#include <dlfcn.h>

#include <array>
#include <cstdint>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

namespace {

struct PythonObject;

// With METH_NOARGS a method is not given the third argument, and does not look at it.
using PythonMethod = PythonObject* (*)(PythonObject* self, PythonObject* arguments, PythonObject* keywords);
using PythonVectorcall = PythonObject* (*)(PythonObject* function, PythonObject* const* arguments, size_t count,
                                           PythonObject* names);
constexpr int method_has_keywords = 2;   // METH_KEYWORDS
constexpr int method_is_static = 0x20;   // METH_STATIC
constexpr size_t vectorcall_flag = ~(SIZE_MAX >> 1);  // PY_VECTORCALL_ARGUMENTS_OFFSET

// What a builtin function's object has after its header.
struct PythonFunctionFields {
  lms_torch_method* method;
  PythonObject* self;
  PythonObject* module;
  PythonObject* weak_references;
  PythonVectorcall vectorcall;
};

// PyTorch 2.6 has 622.
constexpr size_t most_methods = 1024;

struct RepeatedMethod {
  lms_torch_method* method;
  PythonMethod stock;
  PythonMethod repeated;
  PythonObject* descriptor;
};

// Written once, before anything leads here.
struct RepeatedCalls {
  size_t fields = 0;
  std::vector<PythonObject*> functions;
  std::array<RepeatedMethod, most_methods> methods;
  size_t method_count = 0;
  std::string refusal;
  PythonObject* again = nullptr;
  PythonObject* none = nullptr;
};
RepeatedCalls* repeated_calls = nullptr;

thread_local bool repeating = false;
// Calls that the thread is in, one inside another, and whether one of them was made again in vain.
thread_local unsigned repeated_depth = 0;
thread_local bool repeated_in_vain = false;

// What this needs of Python, in the process that has it.
struct PythonFunctions {
  void (*fetch_error)(PythonObject**, PythonObject**, PythonObject**);
  void (*restore_error)(PythonObject*, PythonObject*, PythonObject*);
  PythonObject* (*text_of)(PythonObject*);
  const char* (*characters_of)(PythonObject*);
  PythonObject* (*call)(PythonObject*, ...);
  PythonObject* (*new_tuple)(std::intptr_t);
  int (*set_item)(PythonObject*, std::intptr_t, PythonObject*);
  PythonObject* (*item_of)(PythonObject*, std::intptr_t);
  std::intptr_t (*size_of)(PythonObject*);
  PythonObject* (*new_dictionary)();
  int (*set_value)(PythonObject*, PythonObject*, PythonObject*);
  void (*hold)(PythonObject*);
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
         python_find("PyObject_Str", &python.text_of) && python_find("PyUnicode_AsUTF8", &python.characters_of) &&
         python_find("PyObject_CallFunctionObjArgs", &python.call) && python_find("PyTuple_New", &python.new_tuple) &&
         python_find("PyTuple_SetItem", &python.set_item) && python_find("PyTuple_GetItem", &python.item_of) &&
         python_find("PyTuple_Size", &python.size_of) && python_find("PyDict_New", &python.new_dictionary) &&
         python_find("PyDict_SetItem", &python.set_value) && python_find("Py_IncRef", &python.hold) &&
         python_find("Py_DecRef", &python.release);
}

// Whether the error that is set is the one to call again for. Then it is cleared.
bool python_take_refusal() {
  const PythonFunctions& python = python_functions;
  PythonObject* type = nullptr;
  PythonObject* value = nullptr;
  PythonObject* traceback = nullptr;
  python.fetch_error(&type, &value, &traceback);
  PythonObject* const text = value != nullptr ? python.text_of(value) : nullptr;
  const char* const characters = text != nullptr ? python.characters_of(text) : nullptr;
  const bool refused = characters != nullptr && std::strstr(characters, repeated_calls->refusal.c_str()) != nullptr;
  python.release(text);
  // Without a text there is another error: a signal's handler has raised it, which comes first.
  if (!refused && (value == nullptr || characters != nullptr)) {
    python.restore_error(type, value, traceback);
    return false;
  }
  for (PythonObject* object : {type, value, traceback}) {
    python.release(object);
  }
  return refused;
}

PythonObject* python_or_none(PythonObject* object) { return object != nullptr ? object : repeated_calls->none; }

// Calls `method`, and if that is refused, again() of `function`.
PythonObject* repeated_call(PythonMethod method, PythonObject* function, PythonObject* self, PythonObject* arguments,
                            PythonObject* keywords, PythonObject* keywords_or_none) {
  if (repeated_depth++ == 0) {
    repeated_in_vain = false;
  }
  PythonObject* result = method(self, arguments, keywords);
  --repeated_depth;
  if (result != nullptr) {
    return result;
  }
  if (repeating || repeated_in_vain || !python_take_refusal()) {
    return nullptr;
  }
  repeating = true;
  {
#if LMS_HAS_CALLBACK_OPTIONS
    const at::RecordFunctionGuard unobserved(false);
#endif
    result = python_functions.call(repeated_calls->again, function, python_or_none(self), python_or_none(arguments),
                                   keywords_or_none, static_cast<PythonObject*>(nullptr));
  }
  repeating = false;
  repeated_in_vain = result == nullptr;
  return result;
}

// What the entries below, of which there are many, have in common: so each of them is a jump.
__attribute__((noinline)) PythonObject* repeated_method_at(const RepeatedMethod& method, PythonObject* self,
                                                           PythonObject* arguments, PythonObject* keywords) {
  const bool has_keywords = (method.method->flags & method_has_keywords) != 0;
  return repeated_call(method.stock, method.descriptor, self, arguments, keywords,
                       python_or_none(has_keywords ? keywords : nullptr));
}

template <size_t index>
PythonObject* repeated_method(PythonObject* self, PythonObject* arguments, PythonObject* keywords) {
  return repeated_method_at(repeated_calls->methods[index], self, arguments, keywords);
}

template <size_t... indices>
std::array<PythonMethod, sizeof...(indices)> repeated_entries(std::index_sequence<indices...> /*all*/) {
  return {{&repeated_method<indices>...}};
}

PythonFunctionFields* fields_of(PythonObject* function) {
  return reinterpret_cast<PythonFunctionFields*>(reinterpret_cast<char*>(function) + repeated_calls->fields);
}

// A dictionary of the keywords, null with an error set where there is no memory.
PythonObject* python_keywords(PythonObject* const* values, PythonObject* names) {
  const PythonFunctions& python = python_functions;
  PythonObject* const keywords = python.new_dictionary();
  const std::intptr_t count = keywords != nullptr ? python.size_of(names) : 0;
  for (std::intptr_t index = 0; index < count; ++index) {
    if (python.set_value(keywords, python.item_of(names, index), values[index]) != 0) {
      python.release(keywords);
      return nullptr;
    }
  }
  return keywords;
}

// Does what Python does for a function whose vectorcall is empty: calls it with a tuple and a dictionary.
PythonObject* repeated_vectorcall(PythonObject* function, PythonObject* const* arguments, size_t count_and_flag,
                                  PythonObject* names) {
  const PythonFunctions& python = python_functions;
  const auto count = static_cast<std::intptr_t>(count_and_flag & ~vectorcall_flag);
  PythonObject* const tuple = python.new_tuple(count);
  if (tuple == nullptr) {
    return nullptr;
  }
  for (std::intptr_t index = 0; index < count; ++index) {
    python.hold(arguments[index]);
    python.set_item(tuple, index, arguments[index]);  // takes the reference
  }
  const bool has_keywords = names != nullptr && python.size_of(names) != 0;
  PythonObject* const keywords = has_keywords ? python_keywords(arguments + count, names) : nullptr;
  PythonObject* result = nullptr;
  if (!has_keywords || keywords != nullptr) {
    const PythonFunctionFields& fields = *fields_of(function);
    PythonObject* const self = (fields.method->flags & method_is_static) != 0 ? nullptr : fields.self;
    result = repeated_call(reinterpret_cast<PythonMethod>(fields.method->function), function, self, tuple, keywords,
                           python_or_none(keywords));
  }
  if (keywords != nullptr) {
    python.release(keywords);
  }
  python.release(tuple);
  return result;
}

// Other threads may be calling. What other code has exchanged since stays as it is.
template <typename Field, typename Function>
void repeated_exchange(Field* field, Function from, Function to) {
  auto expected = reinterpret_cast<std::uintptr_t>(from);
  __atomic_compare_exchange_n(reinterpret_cast<std::uintptr_t*>(field), &expected, reinterpret_cast<std::uintptr_t>(to),
                              false, __ATOMIC_RELEASE, __ATOMIC_RELAXED);
}

void repeated_switch(bool on) {
  constexpr PythonVectorcall none = nullptr;
  for (PythonObject* function : repeated_calls->functions) {
    repeated_exchange(&fields_of(function)->vectorcall, on ? none : &repeated_vectorcall,
                      on ? &repeated_vectorcall : none);
  }
  for (size_t index = 0; index < repeated_calls->method_count; ++index) {
    const RepeatedMethod& method = repeated_calls->methods[index];
    repeated_exchange(&method.method->function, on ? method.stock : method.repeated,
                      on ? method.repeated : method.stock);
  }
}

lms_status repeated_prepare(const lms_torch_repeated& what) {
  if (what.method_count > most_methods) {
    return lms_fail(LMS_UNSUPPORTED, "PyTorch has more methods than LMS has room for");
  }
  if (!python_find_all()) {
    return lms_fail(LMS_UNSUPPORTED, "a function of Python's stable ABI was not found in this process");
  }
  const std::array<PythonMethod, most_methods> entries = repeated_entries(std::make_index_sequence<most_methods>());
  auto* const calls = new RepeatedCalls;
  calls->fields = what.fields;
  for (size_t index = 0; index < what.function_count; ++index) {
    calls->functions.push_back(static_cast<PythonObject*>(what.functions[index]));
  }
  calls->method_count = what.method_count;
  for (size_t index = 0; index < what.method_count; ++index) {
    lms_torch_method* const method = what.methods[index];
    calls->methods[index] = RepeatedMethod{method, reinterpret_cast<PythonMethod>(method->function), entries[index],
                                           static_cast<PythonObject*>(what.descriptors[index])};
  }
  calls->refusal = what.refusal;
  calls->again = static_cast<PythonObject*>(what.again);
  calls->none = static_cast<PythonObject*>(what.none);
  repeated_calls = calls;
  return LMS_OK;
}

}  // namespace

lms_status lms_torch_repeat_calls(const lms_torch_repeated* what) {
  if (repeated_calls == nullptr) {
    const lms_status status = repeated_prepare(*what);
    if (status != LMS_OK) {
      return status;
    }
  }
  repeated_switch(true);
  return LMS_OK;
}

void lms_torch_repeat_none(void) {
  if (repeated_calls != nullptr) {
    repeated_switch(false);
  }
}
