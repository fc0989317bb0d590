// The host store in files: in one directory, or in several, of which each block goes to the one that will have written
// it first. Nothing stays behind there, however the process ends.
//
// A directory that is full, or where a write has failed, is left out while others have room; a line on stderr says so,
// once for each.
#ifndef LMS_FILE_STORE_H
#define LMS_FILE_STORE_H

#include <memory>
#include <string>
#include <vector>

#include "../store.h"

namespace lms {

struct FileStoreOptions {
  std::vector<std::string> directories;  // none: the store is in memory
  bool checks = true;                     // what is read has to be what was written

  bool operator==(const FileStoreOptions& other) const {
    return directories == other.directories && checks == other.checks;
  }
};

// Null when no file can be created in one of the directories; *error then says why.
std::unique_ptr<Store> make_file_store(const FileStoreOptions& options, std::string* error);

}  // namespace lms
#endif  // LMS_FILE_STORE_H
