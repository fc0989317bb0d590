// The directory in which sharers of this machine meet, and whom they trust there.
//
// It is what LMS_SHARE names, else "lms" in the user's runtime directory (XDG_RUNTIME_DIR, /run/user/UID), else
// /tmp/lms-UID. Containers share when the same directory is mounted in each and LMS_SHARE names it.
#ifndef LMS_MEETING_POINT_H
#define LMS_MEETING_POINT_H

#include <sys/stat.h>

#include <string>

#include "../status.h"
#include "share_terms.h"

namespace lms {
namespace meeting_point {

// The directory's path, absolute, by what the environment says now.
std::string place();

// Makes the directory if it is not there. LMS_STORE_FAILED: it cannot be made, or others could write there.
Status prepare(const std::string& directory, const ShareTerms& terms);

// Whether a file belongs to somebody who may share: this user, root, or where a group was asked for, its members.
bool trusted(const struct stat& file, const ShareTerms& terms);

// Lets the group use a file of ours, where one was asked for. False on failure.
bool let_in(int file, const ShareTerms& terms);

}  // namespace meeting_point
}  // namespace lms
#endif  // LMS_MEETING_POINT_H
