#include "meeting_point.h"

#include <unistd.h>

#include <cerrno>
#include <climits>
#include <cstdlib>
#include <cstring>

namespace lms {
namespace meeting_point {

namespace {

bool meeting_is_directory(const std::string& path) {
  struct stat found{};
  return !path.empty() && stat(path.c_str(), &found) == 0 && S_ISDIR(found.st_mode);
}

Status meeting_failed(const std::string& directory, const std::string& why) {
  return Status(LMS_STORE_FAILED, "processes cannot share through the directory '" + directory + "': " + why +
                                      "; let LMS_SHARE name one that you own and that nobody else can write to");
}

}  // namespace

std::string place() {
  const char* named = std::getenv("LMS_SHARE");
  if (named != nullptr && *named != '\0') {
    char folder[PATH_MAX];
    return *named == '/' || getcwd(folder, sizeof folder) == nullptr ? named : std::string(folder) + "/" + named;
  }
  const char* runtime = std::getenv("XDG_RUNTIME_DIR");
  const std::string user = std::to_string(geteuid());
  for (const std::string& parent : {std::string(runtime != nullptr ? runtime : ""), "/run/user/" + user}) {
    if (meeting_is_directory(parent) && access(parent.c_str(), W_OK) == 0) {
      return parent + "/lms";
    }
  }
  return "/tmp/lms-" + user;
}

Status prepare(const std::string& directory, const ShareTerms& terms) {
  const bool with_group = !terms.group.empty();
  struct stat found{};
  if (mkdir(directory.c_str(), S_IRWXU) == 0) {
    if (with_group && (chown(directory.c_str(), static_cast<uid_t>(-1), terms.gid) != 0 ||
                       chmod(directory.c_str(), S_IRWXU | S_IRWXG | S_ISGID) != 0)) {
      return meeting_failed(directory,
                            "it cannot be given to group '" + terms.group + "' (" + std::strerror(errno) + ")");
    }
  } else if (errno != EEXIST) {
    return meeting_failed(directory, std::string("it cannot be made (") + std::strerror(errno) + ")");
  }
  if (lstat(directory.c_str(), &found) == 0 && S_ISLNK(found.st_mode) && found.st_uid != geteuid() &&
      found.st_uid != 0) {
    return meeting_failed(directory, "it is a link that another user made");
  }
  if (stat(directory.c_str(), &found) != 0 || !S_ISDIR(found.st_mode)) {
    return meeting_failed(directory, "it is no directory");
  }
  const bool of_group = with_group && found.st_gid == terms.gid;
  if (found.st_uid != geteuid() && !of_group) {
    return meeting_failed(directory, "it belongs to another user (" + std::to_string(found.st_uid) + ")");
  }
  if ((found.st_mode & S_IWOTH) != 0 || ((found.st_mode & S_IWGRP) != 0 && !of_group)) {
    return meeting_failed(directory, "other users can write to it");
  }
  if (access(directory.c_str(), R_OK | W_OK | X_OK) != 0) {
    return meeting_failed(directory, std::string("it cannot be written to (") + std::strerror(errno) + ")");
  }
  return {};
}

bool trusted(const struct stat& file, const ShareTerms& terms) {
  return file.st_uid == geteuid() || file.st_uid == 0 || (!terms.group.empty() && file.st_gid == terms.gid);
}

bool let_in(int file, const ShareTerms& terms) {
  return terms.group.empty() || (fchown(file, static_cast<uid_t>(-1), terms.gid) == 0 &&
                                 fchmod(file, S_IRUSR | S_IWUSR | S_IRGRP | S_IWGRP) == 0);
}

}  // namespace meeting_point
}  // namespace lms
