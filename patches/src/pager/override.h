// Overrides of virtual methods whose signatures differ from release to release, so that one source fits them all.
//
//   LMS_DEFINE_OVERRIDE(emptyCache, this->stock()->)
//
// defines the class template lms_override_emptyCache<Interface>::Link<Base>: Base, with emptyCache() overridden to call
// `this->stock()->emptyCache` with the same arguments. The signature is that of Interface::emptyCache; where Interface
// has no such method, or an overloaded one, Link<Base> is just Base. lms::Chain puts links on top of each other.
#ifndef LMS_OVERRIDE_H
#define LMS_OVERRIDE_H

#include <type_traits>
#include <utility>

namespace lms {

// std::void_t, which C++14 lacks.
template <typename...>
struct MakeVoid {
  using type = void;
};

// Chain<Base, A, B>::type is B<A<Base>>.
template <typename Base, template <typename> class... Links>
struct Chain {
  using type = Base;
};
template <typename Base, template <typename> class Link, template <typename> class... Links>
struct Chain<Base, Link, Links...> {
  using type = typename Chain<Link<Base>, Links...>::type;
};

}  // namespace lms

#define LMS_DEFINE_OVERRIDE(method, target)                                                              \
  template <typename Interface, typename = void>                                                         \
  struct lms_signature_##method {                                                                        \
    using type = void;                                                                                   \
  };                                                                                                     \
  template <typename Interface>                                                                          \
  struct lms_signature_##method<Interface, typename lms::MakeVoid<decltype(&Interface::method)>::type> { \
    using type = decltype(&Interface::method);                                                           \
  };                                                                                                     \
  template <typename Base, typename Signature>                                                           \
  class lms_link_##method : public Base {};                                                              \
  template <typename Base, typename Result, typename Owner, typename... Args>                            \
  class lms_link_##method<Base, Result (Owner::*)(Args...)> : public Base {                              \
   public:                                                                                               \
    Result method(Args... args) override { return target method(std::forward<Args>(args)...); }          \
  };                                                                                                     \
  template <typename Base, typename Result, typename Owner, typename... Args>                            \
  class lms_link_##method<Base, Result (Owner::*)(Args...) const> : public Base {                        \
   public:                                                                                               \
    Result method(Args... args) const override { return target method(std::forward<Args>(args)...); }    \
  };                                                                                                     \
  template <typename Interface>                                                                          \
  struct lms_override_##method {                                                                         \
    template <typename Base>                                                                             \
    using Link = lms_link_##method<Base, typename lms_signature_##method<Interface>::type>;              \
  };

#endif  // LMS_OVERRIDE_H
