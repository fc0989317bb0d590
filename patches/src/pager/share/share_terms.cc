#include "share_terms.h"

#include <grp.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <vector>

namespace lms {

namespace {

bool terms_is_name(const std::string& name) {
  const auto allowed = [](char each) {
    return (each >= 'a' && each <= 'z') || (each >= 'A' && each <= 'Z') || (each >= '0' && each <= '9') ||
           each == '-' || each == '_' || each == '.';
  };
  return name.size() <= share_longest_name && name[0] != '.' && std::all_of(name.begin(), name.end(), allowed);
}

Status terms_wrong(const std::string& sentence) { return Status(LMS_INVALID_ARGUMENT, "share: " + sentence); }

// The id of a group by its name or number; false when there is none.
bool terms_find_group(const std::string& name, gid_t* id) {
  const auto is_digit = [](char each) { return each >= '0' && each <= '9'; };
  if (!name.empty() && name.size() <= 10 && std::all_of(name.begin(), name.end(), is_digit)) {
    const std::uint64_t number = std::strtoull(name.c_str(), nullptr, 10);
    *id = static_cast<gid_t>(number);
    return number < UINT32_MAX;  // which stands for none
  }
  group entry = {};
  group* found = nullptr;
  std::vector<char> buffer(1 << 16);
  if (getgrnam_r(name.c_str(), &entry, buffer.data(), buffer.size(), &found) != 0 || found == nullptr) {
    return false;
  }
  *id = found->gr_gid;
  return true;
}

Status terms_read_option(const std::string& name, const std::string& value, ShareTerms* terms) {
  char* end = nullptr;
  errno = 0;
  if (name == "weight") {
    terms->weight = std::strtod(value.c_str(), &end);
    if (value.empty() || *end != '\0' || !(terms->weight >= share_least_weight && terms->weight <= share_most_weight)) {
      return terms_wrong("a weight of '" + value + "' is none from 0.001 to 1000000; 2 is twice the share of 1");
    }
  } else if (name == "minimum") {
    terms->minimum = std::strtoull(value.c_str(), &end, 10);
    if (value.empty() || value[0] == '-' || *end != '\0' || errno != 0) {
      return terms_wrong("a minimum of '" + value + "' is no number of bytes");
    }
  } else if (name == "priority") {
    terms->priority = std::strtoll(value.c_str(), &end, 10);
    if (value.empty() || *end != '\0' || errno != 0 || std::llabs(terms->priority) > share_most_priority) {
      return terms_wrong("a priority of '" + value + "' is none from -1000 to 1000; higher is served first");
    }
  } else if (name == "group") {
    terms->group = value;
    if (!terms_find_group(value, &terms->gid)) {
      return terms_wrong("there is no group '" + value + "' on this machine");
    }
  } else {
    return terms_wrong("'" + name + "' is no option; there are weight, minimum, priority, group");
  }
  return {};
}

}  // namespace

Status read_share_terms(const std::string& text, ShareTerms* terms) {
  *terms = ShareTerms();
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find(',', begin), text.size());
    const std::string part = text.substr(begin, end - begin);
    const std::size_t equals = part.find('=');
    if (equals != std::string::npos) {
      Status status = terms_read_option(part.substr(0, equals), part.substr(equals + 1), terms);
      if (!status.ok()) {
        return status;
      }
    } else if (begin > 0 || !terms_is_name(part)) {
      return terms_wrong("'" + part +
                         "' is no name of a budget: at most 64 letters, digits, '-', '_' and '.', the first no '.'");
    } else {
      terms->name = part;
    }
    begin = end + 1;
  }
  return {};
}

}  // namespace lms
