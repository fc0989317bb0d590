#include "cuda_backend.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <iterator>
#include <map>
#include <mutex>
#include <string>
#include <unordered_map>
#include <utility>

#include "../../arena.h"
#include "cuda_away.h"
#include "cuda_chunks.h"
#include "cuda_device.h"
#include "cuda_streams.h"
#include "pinned_store.h"

namespace lms {

namespace {

constexpr std::uint64_t cuda_most_address_space = 1ULL << 40;
constexpr std::uint64_t cuda_least_address_space = 1ULL << 32;
static_assert(Arena::large_block % cuda_page_bytes == 0, "blocks start at whole pages");

// Contents that cannot be copied straight between device and store go through pinned memory of this size: one half is
// copied by the device while the other is read or written.
constexpr std::size_t cuda_staging_half = 4 << 20;

CudaAddress cuda_address(const char* address) { return reinterpret_cast<std::uintptr_t>(address); }

class CudaBackendImpl final : public CudaBackend {
 public:
  explicit CudaBackendImpl(std::shared_ptr<CudaDevice> device)
      : device_(std::move(device)), driver_(device_->driver), streams_(device_, &clock_) {}
  ~CudaBackendImpl() override;

  // The rest of the construction.
  bool reserve(std::uint64_t address_space);
  bool start();

  std::string device() const override { return "cuda:" + std::to_string(device_->ordinal); }
  std::size_t page_bytes() const override { return cuda_page_bytes; }
  char* base() const override { return base_; }
  std::size_t span() const override { return span_; }
  std::uint64_t capacity() const override { return capacity_; }
  std::string identity() const override { return "cuda-" + device_->uuid(); }
  std::uint64_t free_bytes() override { return cuda_forked() ? 0 : device_->free_bytes(); }
  bool serves_faults() const override { return false; }
  bool asynchronous() const override { return true; }
  // To change what may be done with pages that are mapped, a driver takes them away for a moment (580.159, by its
  // system calls), and work on the device that uses them then fails.
  bool protects() const override { return false; }
  bool crowded() override { return false; }
  std::string failure() const override { return cuda_failure(); }
  bool lacked_memory() const override { return cuda_last_result() == cuda::out_of_memory; }

  StreamId stream(std::uintptr_t handle, bool lasting) override { return streams_.number(handle, lasting); }
  bool lasting(StreamId stream) const override { return streams_.lasting(stream); }
  void mark(StreamId stream) override {
    streams_.mark(stream);
    show_away();
  }
  bool order(const Uses& uses, StreamId user) override { return streams_.order(uses, user); }
  bool over(const Uses& uses) override { return streams_.over(uses); }

  bool map(char* address, std::size_t bytes, StreamId user) override;
  bool unmap(char* address, std::size_t bytes, const Uses& uses) override;
  bool settled(char* address, std::size_t bytes) override;
  std::size_t parting(char* address, std::size_t whole, std::size_t bytes) override;
  bool part(char* address, std::size_t whole, std::size_t kept, std::size_t rest) override;
  bool join(char* address, std::size_t bytes, std::size_t more) override;
  bool page_out(char* address, std::size_t bytes, const Slot& slot, const Uses& uses, Uses* copy) override;
  void forget(char* address) override {
    if (away_ != nullptr && !cuda_forked()) {
      away_->remove(address);  // fails only with the device
    }
  }
  bool copy_in(char* address, std::size_t bytes, const Slot& slot, Access access, const Uses& saved, Uses* copy,
               bool* refused) override;

  std::uint64_t trim(std::uint64_t bytes) override { return cuda_forked() ? 0 : chunks_->trim(bytes); }
  std::uint64_t kept_bytes() override { return cuda_forked() ? 0 : chunks_->kept_bytes(); }
  std::unique_ptr<Store> make_memory_store() override { return make_pinned_store(device_, away_ != nullptr); }
  bool add_peer(int device) override;
  void after_fork_in_child() override { cuda_set_forked(); }

  bool export_range(char* address, std::vector<CudaExport>* exports) override;

 private:
  // A range that has pages.
  struct Range {
    CudaChunkList chunks;
    std::size_t bytes = 0;
    bool mapped = false;  // false in the table only after the device failed in the middle of a change
  };
  // A range whose pages were taken away while work that uses them was under way: still mapped.
  struct Unsettled {
    std::size_t bytes;
    Uses uses;
  };

  // Take a range out of the table, and put it back; between the two no other thread sees it.
  bool take_range(char* address, std::size_t bytes, Range* range);
  void put_range(char* address, Range range);

  void show_away() {
    if (away_ != nullptr) {
      away_->show();
    }
  }

  bool map_range(char* address, Range* range);
  bool unmap_range(char* address, Range* range);
  bool give_access(char* address, std::size_t bytes, std::size_t first);
  bool settle(char* address, std::size_t bytes);
  bool wait_until_settled(char* address, std::size_t bytes);

  bool save(const CudaChunkList& chunks, const Slot& slot, Uses* copy);
  bool save_staged(const CudaChunkList& chunks, const Slot& slot);
  bool load(const CudaChunkList& chunks, const Slot& slot, const Uses& saved, Uses* copy);
  bool load_staged(const CudaChunkList& chunks, const Slot& slot);
  std::unique_ptr<PinnedMemory> take_staging();
  void give_staging(std::unique_ptr<PinnedMemory> staging);

  const std::shared_ptr<CudaDevice> device_;
  const CudaDriver& driver_;
  CudaStreams streams_;
  std::unique_ptr<CudaChunks> chunks_;
  std::unique_ptr<CudaAway> away_;  // null where ranges that are away are not readable
  char* base_ = nullptr;
  std::size_t span_ = 0;
  std::uint64_t capacity_ = 0;
  StreamId out_ = no_stream;
  StreamId in_ = no_stream;

  // Guards what follows. Held also for calls that change who may access a range, so that a new peer finds it before or
  // after; never while anybody waits for the device. The locks of streams are taken inside it.
  std::mutex lock_;
  std::unordered_map<char*, Range> ranges_;  // by address
  std::map<char*, Unsettled> unsettled_;     // by address
  std::vector<cuda::AccessDescription> access_;  // who may access the ranges: the device itself, then its peers
  std::vector<std::unique_ptr<PinnedMemory>> staging_;  // unused at the moment
};

// Chunks of a range, piece by piece through a staging buffer: the part of one chunk that one half holds.
struct CudaPiece {
  CudaAddress alias;
  std::uint64_t offset;  // in the slot
  std::size_t bytes;
};

std::vector<CudaPiece> cuda_pieces(const CudaChunkList& chunks, std::uint64_t offset) {
  std::vector<CudaPiece> pieces;
  for (const auto& chunk : chunks) {
    for (std::size_t done = 0; done < chunk->bytes;) {
      const std::size_t bytes = std::min(chunk->bytes - done, cuda_staging_half);
      pieces.push_back(CudaPiece{chunk->alias + done, offset, bytes});
      done += bytes;
      offset += bytes;
    }
  }
  return pieces;
}

bool CudaBackendImpl::reserve(std::uint64_t address_space) {
  const CudaScope scope(*device_);
  if (!scope.ok()) {
    return false;
  }
  const std::uint64_t unit = 2 * Arena::large_block;  // an arena's two halves
  const std::uint64_t wanted = (std::min(address_space, cuda_most_address_space) + unit - 1) / unit * unit;
  const std::uint64_t least = wanted != 0 ? wanted : cuda_least_address_space;
  for (std::uint64_t bytes = wanted != 0 ? wanted : cuda_most_address_space; bytes >= least; bytes /= 2) {
    CudaAddress address = 0;
    if (device_->check(driver_.mem_address_reserve(&address, bytes, Arena::large_block, 0, 0), "cuMemAddressReserve")) {
      base_ = reinterpret_cast<char*>(static_cast<std::uintptr_t>(address));
      span_ = bytes;
      return true;
    }
  }
  return false;
}

bool CudaBackendImpl::start() {
  const CudaScope scope(*device_);
  if (!scope.ok()) {
    return false;
  }
  cuda::AllocationProperties properties = {};
  properties.type = cuda::allocation_pinned;
  properties.location = cuda::Location{cuda::location_device, device_->id};
  std::size_t granularity = 0;
  if (!device_->check(driver_.mem_get_allocation_granularity(&granularity, &properties, cuda::granularity_minimum),
                      "cuMemGetAllocationGranularity")) {
    return false;
  }
  if (granularity == 0 || cuda_page_bytes % granularity != 0) {
    return cuda_fail("its memory is given out in units of " + std::to_string(granularity) + " bytes, not " +
                     std::to_string(cuda_page_bytes));
  }
  capacity_ = device_->total_bytes();
  access_.push_back(cuda::AccessDescription{{cuda::location_device, device_->id}, cuda::access_read_write});
  // Copies go first where the device has to choose: the program waits for them, or will soon.
  int least = 0;
  int greatest = 0;
  driver_.ctx_get_stream_priority_range(&least, &greatest);
  for (StreamId* own : {&out_, &in_}) {
    CudaStream stream = nullptr;
    if (!device_->check(driver_.stream_create_with_priority(&stream, cuda::stream_non_blocking, greatest),
                        "cuStreamCreateWithPriority")) {
      return false;
    }
    *own = streams_.number(reinterpret_cast<std::uintptr_t>(stream), /*lasting=*/true);
  }
  if (CudaAway::wanted(*device_)) {
    away_ = std::make_unique<CudaAway>(device_, &streams_);
  }
  chunks_ = std::make_unique<CudaChunks>(device_, &streams_, [this] { settle(base_, span_); });
  return true;
}

CudaBackendImpl::~CudaBackendImpl() {
  const CudaScope scope(*device_);
  if (!scope.ok()) {
    return;
  }
  driver_.ctx_synchronize();
  away_.reset();
  for (const auto& one : unsettled_) {
    device_->unmap(cuda_address(one.first), one.second.bytes);
  }
  for (auto& one : ranges_) {
    unmap_range(one.first, &one.second);
    chunks_->give(&one.second.chunks, Uses{});
  }
  chunks_.reset();
  for (const StreamId own : {out_, in_}) {
    if (own != no_stream) {
      driver_.stream_destroy(streams_.handle(own));
    }
  }
  if (span_ != 0) {
    driver_.mem_address_free(cuda_address(base_), span_);
  }
}

// ---- ranges

bool CudaBackendImpl::take_range(char* address, std::size_t bytes, Range* range) {
  const std::lock_guard<std::mutex> guard(lock_);
  const auto found = ranges_.find(address);
  if (found == ranges_.end() || found->second.bytes != bytes) {
    return cuda_fail("there is no such range with pages");
  }
  *range = std::move(found->second);
  ranges_.erase(found);
  return true;
}

void CudaBackendImpl::put_range(char* address, Range range) {
  const std::lock_guard<std::mutex> guard(lock_);
  ranges_[address] = std::move(range);
}

// Maps the chunks one after the other, for all who may access them, and puts the range into the table. When it fails
// nothing is mapped, and the range is as it was.
bool CudaBackendImpl::map_range(char* address, Range* range) {
  std::size_t done = 0;
  for (const auto& chunk : range->chunks) {
    if (!device_->map(cuda_address(address) + done, chunk->bytes, chunk->memory)) {
      break;
    }
    done += chunk->bytes;
  }
  if (done == range->bytes) {
    const std::lock_guard<std::mutex> guard(lock_);
    if (give_access(address, range->bytes, 0)) {
      range->mapped = true;
      ranges_[address] = std::move(*range);
      return true;
    }
  }
  if (done > 0) {
    const std::string reason = cuda_failure();
    const CudaResult result = cuda_last_result();
    device_->unmap(cuda_address(address), done);
    return cuda_fail(reason, result);
  }
  return false;
}

bool CudaBackendImpl::unmap_range(char* address, Range* range) {
  if (range->mapped && !device_->unmap(cuda_address(address), range->bytes)) {
    return false;
  }
  range->mapped = false;
  return true;
}

// To the devices from the `first` on. The lock is held.
bool CudaBackendImpl::give_access(char* address, std::size_t bytes, std::size_t first) {
  return device_->set_access(cuda_address(address), bytes, access_.data() + first, access_.size() - first);
}

bool CudaBackendImpl::map(char* address, std::size_t bytes, StreamId user) {
  show_away();
  const CudaScope scope(*device_);
  Range range;
  bool refused = false;
  if (!scope.ok() || !wait_until_settled(address, bytes) || !chunks_->take(bytes, &range.chunks, &refused)) {
    return false;
  }
  range.bytes = bytes;
  // There is no stream to wait for what a range for no stream has to wait for, so it waits here.
  if (chunks_->order(range.chunks, user == no_stream ? host_stream : user) && map_range(address, &range)) {
    return true;
  }
  chunks_->give_unused(&range.chunks);
  return false;
}

bool CudaBackendImpl::unmap(char* address, std::size_t bytes, const Uses& uses) {
  if (cuda_forked()) {
    return true;
  }
  const CudaScope scope(*device_);
  Range range;
  if (!scope.ok() || !take_range(address, bytes, &range)) {
    return false;
  }
  if (streams_.over(uses)) {
    if (!unmap_range(address, &range)) {
      put_range(address, std::move(range));
      return false;
    }
    chunks_->give(&range.chunks, Uses{});
    return true;
  }
  if (range.mapped) {
    const std::lock_guard<std::mutex> guard(lock_);
    unsettled_[address] = Unsettled{bytes, uses};
  }
  chunks_->give(&range.chunks, uses);
  return true;
}

std::size_t CudaBackendImpl::parting(char* address, std::size_t whole, std::size_t bytes) {
  const std::lock_guard<std::mutex> guard(lock_);
  const auto found = ranges_.find(address);
  std::size_t kept = 0;
  if (found != ranges_.end() && found->second.mapped && found->second.bytes == whole) {
    for (auto chunk = found->second.chunks.begin(); kept < bytes && chunk != found->second.chunks.end(); ++chunk) {
      kept += (*chunk)->bytes;
    }
  }
  return kept < bytes ? whole : kept;
}

bool CudaBackendImpl::part(char* address, std::size_t whole, std::size_t kept, std::size_t /*rest*/) {
  const std::lock_guard<std::mutex> guard(lock_);
  Range& first = ranges_.at(address);  // as parting() found it
  Range second;
  second.bytes = whole - kept;
  second.mapped = true;
  first.bytes = kept;
  std::size_t bytes = 0;
  auto chunk = first.chunks.begin();
  for (; bytes < kept; ++chunk) {
    bytes += (*chunk)->bytes;
  }
  second.chunks.assign(std::make_move_iterator(chunk), std::make_move_iterator(first.chunks.end()));
  first.chunks.erase(chunk, first.chunks.end());
  ranges_[address + kept] = std::move(second);
  return true;
}

bool CudaBackendImpl::join(char* address, std::size_t bytes, std::size_t /*more*/) {
  const std::lock_guard<std::mutex> guard(lock_);
  const auto first = ranges_.find(address);
  const auto next = ranges_.find(address + bytes);
  if (first == ranges_.end() || next == ranges_.end() || !first->second.mapped || !next->second.mapped) {
    return false;
  }
  Range& range = first->second;
  range.bytes += next->second.bytes;
  range.chunks.insert(range.chunks.end(), std::make_move_iterator(next->second.chunks.begin()),
                      std::make_move_iterator(next->second.chunks.end()));
  ranges_.erase(next);
  return true;
}

bool CudaBackendImpl::settled(char* address, std::size_t bytes) { return cuda_forked() || settle(address, bytes); }

// Unmaps what was left mapped between the two addresses and is no longer used. True when nothing is left.
bool CudaBackendImpl::settle(char* address, std::size_t bytes) {
  const std::lock_guard<std::mutex> guard(lock_);
  auto one = unsettled_.upper_bound(address);
  if (one != unsettled_.begin()) {
    --one;  // may reach into the range from before
  }
  bool all = true;
  while (one != unsettled_.end() && one->first < address + bytes) {
    if (one->first + one->second.bytes <= address) {
      ++one;
      continue;
    }
    const CudaScope scope(*device_);
    if (scope.ok() && streams_.over(one->second.uses) && device_->unmap(cuda_address(one->first), one->second.bytes)) {
      one = unsettled_.erase(one);
    } else {
      all = false;
      ++one;
    }
  }
  return all;
}

bool CudaBackendImpl::wait_until_settled(char* address, std::size_t bytes) {
  if (settle(address, bytes)) {
    return true;
  }
  std::vector<Uses> uses;
  {
    const std::lock_guard<std::mutex> guard(lock_);
    for (const auto& one : unsettled_) {
      if (one.first < address + bytes && one.first + one.second.bytes > address) {
        uses.push_back(one.second.uses);
      }
    }
  }
  return std::all_of(uses.begin(), uses.end(), [this](const Uses& one) { return streams_.order(one, host_stream); }) &&
         settle(address, bytes);
}

bool CudaBackendImpl::add_peer(int device) {
  const CudaScope scope(*device_);
  CudaDeviceId peer = 0;
  int can = 0;
  if (!scope.ok() || !device_->check(driver_.device_get(&peer, device), "cuDeviceGet") ||
      !device_->check(driver_.device_can_access_peer(&can, peer, device_->id), "cuDeviceCanAccessPeer")) {
    return false;
  }
  if (can == 0) {
    return cuda_fail("CUDA device " + std::to_string(device) + " cannot access the memory of device " +
                     std::to_string(device_->ordinal));
  }
  const std::lock_guard<std::mutex> guard(lock_);
  if (std::any_of(access_.begin(), access_.end(),
                  [&](const cuda::AccessDescription& one) { return one.location.id == peer; })) {
    return true;
  }
  if (away_ != nullptr && !away_->add_reader(peer)) {
    return false;
  }
  access_.push_back(cuda::AccessDescription{{cuda::location_device, peer}, cuda::access_read_write});
  for (const auto& one : ranges_) {
    if (one.second.mapped && !give_access(one.first, one.second.bytes, access_.size() - 1)) {
      access_.pop_back();
      return false;
    }
  }
  return true;
}

// ---- contents

bool CudaBackendImpl::page_out(char* address, std::size_t bytes, const Slot& slot, const Uses& uses, Uses* copy) {
  *copy = Uses{};
  show_away();
  const CudaScope scope(*device_);
  Range range;
  if (!scope.ok() || !streams_.order(uses, host_stream) || !take_range(address, bytes, &range)) {
    return false;
  }
  if (!unmap_range(address, &range)) {
    put_range(address, std::move(range));
    return false;
  }
  if (!save(range.chunks, slot, copy)) {
    const std::string reason = cuda_failure();
    *copy = Uses{};
    if (!map_range(address, &range)) {
      put_range(address, std::move(range));  // without pages for the program: the device has failed altogether
    }
    return cuda_fail(reason);
  }
  chunks_->give(&range.chunks, *copy);
  if (away_ != nullptr) {
    away_->add(address, bytes, slot, *copy);
  }
  return true;
}

// Copies the chunks into the slot. Nothing of it is under way when it fails.
bool CudaBackendImpl::save(const CudaChunkList& chunks, const Slot& slot, Uses* copy) {
  if (!chunks_->map_aliases(chunks)) {
    return false;
  }
  char* to = slot.segment->at(slot.offset);
  if (to == nullptr) {
    return save_staged(chunks, slot);
  }
  for (const auto& chunk : chunks) {
    if (!device_->check(driver_.memcpy_to_host(to, chunk->alias, chunk->bytes, streams_.handle(out_)),
                        "cuMemcpyDtoHAsync")) {
      const std::string reason = cuda_failure();
      streams_.order(streams_.uses_of(out_), host_stream);
      return cuda_fail(reason);
    }
    to += chunk->bytes;
  }
  *copy = streams_.uses_of(out_);
  streams_.mark(out_);
  return true;
}

bool CudaBackendImpl::save_staged(const CudaChunkList& chunks, const Slot& slot) {
  std::unique_ptr<PinnedMemory> staging = take_staging();
  if (staging == nullptr) {
    return false;
  }
  const std::vector<CudaPiece> pieces = cuda_pieces(chunks, slot.offset);
  const auto half = [&](std::size_t index) { return staging->base() + index % 2 * cuda_staging_half; };
  Uses copies[2];
  const auto write = [&](std::size_t index) {
    return streams_.order(copies[index % 2], host_stream) &&
           (slot.segment->write(pieces[index].offset, half(index), pieces[index].bytes) ||
            cuda_fail(slot.store->failure("written", slot, pieces[index].bytes, errno)));
  };
  bool saved = true;
  for (std::size_t index = 0; saved && index < pieces.size(); ++index) {
    saved = device_->check(
        driver_.memcpy_to_host(half(index), pieces[index].alias, pieces[index].bytes, streams_.handle(out_)),
        "cuMemcpyDtoHAsync");
    copies[index % 2] = streams_.uses_of(out_);
    streams_.mark(out_);
    saved = saved && (index == 0 || write(index - 1));
  }
  saved = saved && write(pieces.size() - 1);
  if (!saved) {
    const std::string reason = cuda_failure();
    streams_.order(streams_.uses_of(out_), host_stream);
    cuda_fail(reason);
  }
  give_staging(std::move(staging));
  return saved;
}

bool CudaBackendImpl::copy_in(char* address, std::size_t bytes, const Slot& slot, Access /*access*/, const Uses& saved,
                              Uses* copy, bool* refused) {
  *copy = Uses{};
  *refused = false;
  const CudaScope scope(*device_);
  Range range;
  if (!scope.ok() || !wait_until_settled(address, bytes) || !chunks_->take(bytes, &range.chunks, refused)) {
    return false;
  }
  if (!chunks_->order(range.chunks, in_) || (away_ != nullptr && !away_->remove(address))) {
    chunks_->give_unused(&range.chunks);
    return false;
  }
  range.bytes = bytes;
  if (load(range.chunks, slot, saved, copy) && map_range(address, &range)) {
    return true;
  }
  const std::string reason = cuda_failure();
  const Uses begun = streams_.uses_of(in_);
  streams_.order(begun, host_stream);
  chunks_->give(&range.chunks, begun);
  *copy = Uses{};
  return cuda_fail(reason);
}

// Copies the slot into the chunks, which are ready for it. The copy may be under way when it fails.
bool CudaBackendImpl::load(const CudaChunkList& chunks, const Slot& slot, const Uses& saved, Uses* copy) {
  const char* from = slot.segment->at(slot.offset);
  if (!streams_.order(saved, from != nullptr ? in_ : host_stream) || !chunks_->map_aliases(chunks)) {
    return false;
  }
  if (from == nullptr) {
    return load_staged(chunks, slot);
  }
  for (const auto& chunk : chunks) {
    if (!device_->check(driver_.memcpy_to_device(chunk->alias, from, chunk->bytes, streams_.handle(in_)),
                        "cuMemcpyHtoDAsync")) {
      return false;
    }
    from += chunk->bytes;
  }
  *copy = streams_.uses_of(in_);
  streams_.mark(in_);
  return true;
}

bool CudaBackendImpl::load_staged(const CudaChunkList& chunks, const Slot& slot) {
  std::unique_ptr<PinnedMemory> staging = take_staging();
  if (staging == nullptr) {
    return false;
  }
  const std::vector<CudaPiece> pieces = cuda_pieces(chunks, slot.offset);
  Uses copies[2];
  bool loaded = true;
  for (std::size_t index = 0; loaded && index < pieces.size(); ++index) {
    const CudaPiece& piece = pieces[index];
    char* half = staging->base() + index % 2 * cuda_staging_half;
    loaded = streams_.order(copies[index % 2], host_stream) &&
             (slot.segment->read(piece.offset, half, piece.bytes) ||
              cuda_fail(slot.store->failure("read", slot, piece.bytes, errno))) &&
             device_->check(driver_.memcpy_to_device(piece.alias, half, piece.bytes, streams_.handle(in_)),
                            "cuMemcpyHtoDAsync");
    copies[index % 2] = streams_.uses_of(in_);
    streams_.mark(in_);
  }
  const std::string reason = cuda_failure();
  const bool ended = streams_.order(streams_.uses_of(in_), host_stream);
  give_staging(std::move(staging));
  return loaded ? ended : cuda_fail(reason);
}

std::unique_ptr<PinnedMemory> CudaBackendImpl::take_staging() {
  {
    const std::lock_guard<std::mutex> guard(lock_);
    if (!staging_.empty()) {
      std::unique_ptr<PinnedMemory> staging = std::move(staging_.back());
      staging_.pop_back();
      return staging;
    }
  }
  std::unique_ptr<PinnedMemory> staging = PinnedMemory::make(device_, 2 * cuda_staging_half);
  if (staging == nullptr) {
    cuda_fail("there is no host memory for a staging buffer of " + std::to_string(2 * cuda_staging_half) + " bytes");
  }
  return staging;
}

void CudaBackendImpl::give_staging(std::unique_ptr<PinnedMemory> staging) {
  const std::lock_guard<std::mutex> guard(lock_);
  staging_.push_back(std::move(staging));
}

bool CudaBackendImpl::export_range(char* address, std::vector<CudaExport>* exports) {
  const CudaScope scope(*device_);
  if (!scope.ok()) {
    return false;
  }
  const std::size_t before = exports->size();
  const std::lock_guard<std::mutex> guard(lock_);
  const auto found = ranges_.find(address);
  if (found == ranges_.end()) {
    return cuda_fail("there is no such range with pages");
  }
  for (const auto& chunk : found->second.chunks) {
    CudaExport one;
    one.bytes = chunk->bytes;
    if (!device_->check(driver_.mem_export(&one.file, chunk->memory, cuda::handle_posix_file, 0),
                        "cuMemExportToShareableHandle")) {
      while (exports->size() > before) {
        close(exports->back().file);
        exports->pop_back();
      }
      return false;
    }
    exports->push_back(one);
  }
  return true;
}

}  // namespace

std::unique_ptr<CudaBackend> make_cuda_backend(int device, std::uint64_t address_space, Status* status) {
  std::shared_ptr<CudaDevice> opened = CudaDevice::open(device, status);
  if (opened == nullptr) {
    return nullptr;
  }
  auto backend = std::make_unique<CudaBackendImpl>(std::move(opened));
  if (!backend->start() || !backend->reserve(address_space)) {
    *status = Status(LMS_UNSUPPORTED, "CUDA device " + std::to_string(device) + " cannot be used: " + cuda_failure());
    return nullptr;
  }
  return backend;
}

}  // namespace lms
