// Whether the headers of this release define a type that another release may only declare, or lack.
#ifndef ATEN_LMS_IS_DEFINED_H
#define ATEN_LMS_IS_DEFINED_H

#include <type_traits>

namespace lms_torch {

// IsDefined<Type> is std::true_type where Type, which has to be declared, is complete.
template <typename Type, typename = void>
struct IsDefined : std::false_type {};
template <typename Type>
struct IsDefined<Type, decltype(static_cast<void>(sizeof(Type)))> : std::true_type {};

}  // namespace lms_torch
#endif  // ATEN_LMS_IS_DEFINED_H
