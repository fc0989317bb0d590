// A sentence per thread. Memory is also freed after a thread's own objects were destroyed, by those of the process at
// its end; what fails then leaves no sentence.
#ifndef LMS_THREAD_TEXT_H
#define LMS_THREAD_TEXT_H

#include <string>
#include <utility>

namespace lms {

// `Owner` tells the sentences of one purpose from those of another.
template <typename Owner>
class ThreadText {
 public:
  static void set(std::string text) {
    if (!ended()) {
      own().text = std::move(text);
    }
  }

  // Empty when none was set. Valid until the thread sets another one.
  static const std::string& get() {
    static const std::string& none = *new std::string;
    return ended() ? none : own().text;
  }

 private:
  struct Own {
    std::string text;
    ~Own() { ended() = true; }
  };
  static Own& own() {
    static thread_local Own one;
    return one;
  }
  static bool& ended() {
    static thread_local bool value = false;  // without a destructor, so that it is there to the last
    return value;
  }
};

}  // namespace lms
#endif  // LMS_THREAD_TEXT_H
