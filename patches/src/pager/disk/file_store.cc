#include "file_store.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <tuple>
#include <utility>
#include <vector>

#include "file_segment.h"

namespace lms {

namespace {

constexpr unsigned file_store_concurrency = 3;  // docs/performance.md: small blocks gain by it
// Of directories that are equally busy, the one that holds less is taken: it will be read from less. A byte that lies
// there counts as so much of one that is on its way.
constexpr double file_store_lying = 1.0 / 1024;

const char* file_store_advice(int error_number) {
  switch (error_number) {
    case EBADF:
      return "the program has closed its file: keep it open, or raise 'ulimit -v'";
    case EBADMSG:
      return "what is there is not what was written: do not trust that disk, choose another directory with store=";
    case EFBIG:
      return "raise 'ulimit -f'";
    case EMFILE:
      return "raise 'ulimit -n'";
    case ENODATA:
      return "something has cut it: choose a directory with store= that nobody else cleans up";
    case EIO:
      return "the disk fails: choose another directory with store=";
    case ENOSPC:
    case EDQUOT:
      return "free space there, or choose another directory with store=";
    default:
      return "make it a directory that can be written, or choose another one with store=";
  }
}

const char* file_store_reason(int error_number) {
  return error_number == EBADMSG   ? "wrong checksum"
         : error_number == ENODATA ? "its file is shorter than what was written to it"
                                   : std::strerror(error_number);
}

class FileStore final : public Store {
 public:
  FileStore(const std::vector<std::string>& directories, bool checks) : Store(directories.size()), checks_(checks) {
    for (const std::string& directory : directories) {
      places_.push_back(std::make_unique<Place>(directory));
    }
  }

  std::string failure(const char* action, const Slot& slot, std::uint64_t bytes, int error_number) const override {
    return sentence(slot.segment->place, action, error_number,
                    " (a block of " + std::to_string(bytes) + " bytes at byte " + std::to_string(slot.offset) +
                        " of its file there)");
  }

  bool write_failed(const Slot& slot, int error_number) override {
    leave_out(slot.segment->place, "written", error_number);
    return std::any_of(places_.begin(), places_.end(),
                       [](const std::unique_ptr<Place>& place) { return !place->left_out; });
  }

  double write_cost() const override { return fastest(&DiskLoad::write_cost); }
  double read_cost() const override { return fastest(&DiskLoad::read_cost); }
  unsigned concurrency() const override { return file_store_concurrency; }
  std::uint64_t gathers() const override { return disk_unit; }

  // One sentence about the first directory in which no file can be created, or nothing.
  std::string check() {
    for (std::size_t place = 0; place < places_.size(); ++place) {
      const int file = FileSegment::create(places_[place]->directory);
      if (file < 0) {
        return sentence(place, "created", errno, "");
      }
      close(file);
    }
    return {};
  }

 protected:
  std::unique_ptr<Segment> grow(std::size_t place, std::uint64_t bytes) override {
    return FileSegment::make(places_[place]->directory, bytes, checks_, &places_[place]->load);
  }

  void refused(std::size_t place, int error_number) override { leave_out(place, "enlarged", error_number); }

  std::string full(int error_number) const override {
    const std::vector<std::size_t> places = order();
    std::string others;
    for (std::size_t index = 0; index + 1 < places.size(); ++index) {
      others += (index == 0 ? " (nor can that in '" : "', '") + places_[places[index]]->directory;
    }
    return sentence(places.back(), "enlarged", error_number, others + (others.empty() ? "" : "')"));
  }

  std::vector<std::size_t> order() const override {
    std::vector<std::tuple<bool, double, std::size_t>> places;
    std::vector<std::size_t> result;
    for (std::size_t index = 0; index < places_.size(); ++index) {
      const Place& place = *places_[index];
      const double bytes =
          static_cast<double>(place.load.bytes()) + file_store_lying * static_cast<double>(used_bytes(index));
      places.emplace_back(place.left_out, bytes * (place.load.write_cost() + place.load.read_cost()), index);
      result.push_back(index);
    }
    std::sort(result.begin(), result.end(), [&](std::size_t a, std::size_t b) { return places[a] < places[b]; });
    return result;
  }

  bool shared_by_fork() const override { return true; }  // both processes hold the same open file

 private:
  struct Place {
    explicit Place(std::string name) : directory(std::move(name)) {}

    const std::string directory;
    DiskLoad load;
    bool left_out = false;
  };

  void leave_out(std::size_t place, const char* action, int error_number) {
    if (places_[place]->left_out) {
      return;
    }
    places_[place]->left_out = true;
    const char* consequence =
        places_.size() > 1 ? "it is left out while other directories have room" : "what can't leave stays in memory";
    const std::string text = "LMS: " + sentence(place, action, error_number, "") + "; " + consequence + "\n";
    static_cast<void>(!::write(STDERR_FILENO, text.data(), text.size()));
  }

  std::string sentence(std::size_t place, const char* action, int error_number, const std::string& which) const {
    return "the host store in '" + places_[place]->directory + "' cannot be " + action + ": " +
           file_store_reason(error_number) + which + "; " + file_store_advice(error_number);
  }

  double fastest(double (DiskLoad::*cost)() const) const {
    double least = (places_.front()->load.*cost)();
    for (const auto& place : places_) {
      least = std::min(least, (place->load.*cost)());
    }
    return least;
  }

  const bool checks_;
  std::vector<std::unique_ptr<Place>> places_;
};

}  // namespace

std::unique_ptr<Store> make_file_store(const FileStoreOptions& options, std::string* error) {
  auto store = std::make_unique<FileStore>(options.directories, options.checks);
  *error = store->check();
  return error->empty() ? std::move(store) : nullptr;
}

}  // namespace lms
