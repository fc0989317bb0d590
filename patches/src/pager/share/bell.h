// A bell: wakes one sharer, whichever process rings. It is a FIFO, since that needs no peer to bind or connect, has no
// limit on its path's length, and is seen through mounts by other containers. What arrives means nothing but "look".
#ifndef LMS_BELL_H
#define LMS_BELL_H

#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <string>

#include "share_terms.h"

namespace lms {

class Bell {
 public:
  // Makes the bell of that path, in place of what was there. Null on failure; errno says why.
  static std::unique_ptr<Bell> make(const std::string& path, const ShareTerms& terms);

  Bell(const std::string& path, int file);
  Bell(const Bell&) = delete;
  Bell& operator=(const Bell&) = delete;
  ~Bell();

  // Closes the descriptor; the path stays. Nobody may wait at the same time.
  void close();

  // Waits until somebody rings, at most so long.
  void wait(int milliseconds) const;

  void remove() const;

  // Rings the bell of that path, if there is one and whoever made it is trusted. Never waits.
  static void ring(const std::string& path, const ShareTerms& terms);

 private:
  // The program may have closed our descriptor, and another file may have it.
  bool is_ours() const;

  const std::string path_;
  int file_;
  ino_t inode_ = 0;
};

}  // namespace lms
#endif  // LMS_BELL_H
