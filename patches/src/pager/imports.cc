#include "imports.h"

#include <dlfcn.h>
#include <elf.h>
#include <link.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

namespace lms {
namespace imports {

namespace {

// The kinds of relocation that stand for the address of an imported function: a call through the linkage table, one
// without it (-fno-plt), and a pointer in data.
#if defined(__x86_64__)
constexpr std::uint64_t imports_of_calls = R_X86_64_JUMP_SLOT;
constexpr std::uint64_t imports_of_addresses = R_X86_64_GLOB_DAT;
constexpr std::uint64_t imports_of_pointers = R_X86_64_64;
#elif defined(__aarch64__)
constexpr std::uint64_t imports_of_calls = R_AARCH64_JUMP_SLOT;
constexpr std::uint64_t imports_of_addresses = R_AARCH64_GLOB_DAT;
constexpr std::uint64_t imports_of_pointers = R_AARCH64_ABS64;
#elif defined(__powerpc64__) && defined(__LITTLE_ENDIAN__)
constexpr std::uint64_t imports_of_calls = R_PPC64_JMP_SLOT;
constexpr std::uint64_t imports_of_addresses = R_PPC64_GLOB_DAT;
constexpr std::uint64_t imports_of_pointers = R_PPC64_ADDR64;
#else
#error "LMS does not know how libraries import functions on this machine"
#endif

struct ImportsCloser {
  void operator()(void* handle) const { dlclose(handle); }
};

// A loaded library, kept loaded, as the loader sees it.
struct ImportsLibrary {
  std::string name;
  std::uintptr_t base = 0;
  const Elf64_Phdr* segments = nullptr;
  std::size_t segment_count = 0;
  std::unique_ptr<void, ImportsCloser> handle;
  const Elf64_Rela* calls = nullptr;
  std::size_t call_bytes = 0;
  const Elf64_Rela* others = nullptr;
  std::size_t other_bytes = 0;
  std::size_t relative = 0;  // so many of the others, the first ones, import nothing
  Elf64_Sym* symbols = nullptr;
  const char* names = nullptr;
  const Elf64_Word* hash = nullptr;  // DT_GNU_HASH
};

int imports_list(dl_phdr_info* info, std::size_t /*size*/, void* libraries) {
  ImportsLibrary library;
  library.name = info->dlpi_name;
  library.base = info->dlpi_addr;
  library.segments = info->dlpi_phdr;
  library.segment_count = info->dlpi_phnum;
  static_cast<std::vector<ImportsLibrary>*>(libraries)->push_back(std::move(library));
  return 0;
}

void imports_read_dynamic(const Elf64_Dyn* entry, ImportsLibrary* library) {
  for (; entry->d_tag != DT_NULL; ++entry) {
    // The loader has relocated most of these addresses, but not those of every library.
    const std::uintptr_t address = entry->d_un.d_ptr + (entry->d_un.d_ptr < library->base ? library->base : 0);
    switch (entry->d_tag) {
      case DT_JMPREL:
        library->calls = reinterpret_cast<const Elf64_Rela*>(address);
        break;
      case DT_PLTRELSZ:
        library->call_bytes = entry->d_un.d_val;
        break;
      case DT_RELA:
        library->others = reinterpret_cast<const Elf64_Rela*>(address);
        break;
      case DT_RELASZ:
        library->other_bytes = entry->d_un.d_val;
        break;
      case DT_RELACOUNT:
        library->relative = entry->d_un.d_val;
        break;
      case DT_SYMTAB:
        library->symbols = reinterpret_cast<Elf64_Sym*>(address);
        break;
      case DT_STRTAB:
        library->names = reinterpret_cast<const char*>(address);
        break;
      case DT_GNU_HASH:
        library->hash = reinterpret_cast<const Elf64_Word*>(address);
        break;
      default:
        break;
    }
  }
}

// In the order in which the loader looks for symbols, but for what was loaded for one library alone, which comes last.
std::vector<ImportsLibrary> imports_libraries() {
  std::vector<ImportsLibrary> libraries;
  dl_iterate_phdr(&imports_list, &libraries);
  for (ImportsLibrary& library : libraries) {
    // A library that is just being loaded is listed before its tables are filled in. Asking for it waits until they
    // are.
    library.handle.reset(dlopen(library.name.empty() ? nullptr : library.name.c_str(), RTLD_LAZY | RTLD_NOLOAD));
    link_map* map = nullptr;
    if (library.handle != nullptr && dlinfo(library.handle.get(), RTLD_DI_LINKMAP, static_cast<void*>(&map)) == 0 &&
        map->l_addr == library.base && library.base != getauxval(AT_SYSINFO_EHDR)) {
      imports_read_dynamic(map->l_ld, &library);
    }  // else it is gone, or the kernel's, which no library imports from
  }
  return libraries;
}

// Calls `visit` with every symbol of that name which the library exports.
template <typename Visit>
void imports_each_symbol(const ImportsLibrary& library, const char* name, Visit visit) {
  if (library.hash == nullptr || library.symbols == nullptr) {
    return;
  }
  Elf64_Word hash = 5381;
  for (const char* letter = name; *letter != '\0'; ++letter) {
    hash = hash * 33 + static_cast<unsigned char>(*letter);
  }
  const Elf64_Word bucket_count = library.hash[0];
  const Elf64_Word first = library.hash[1];  // the symbol of the first chain entry
  const Elf64_Word* buckets = library.hash + 4 + std::size_t{library.hash[2]} * 2;
  const Elf64_Word* chains = buckets + bucket_count;
  Elf64_Word index = bucket_count > 0 ? buckets[hash % bucket_count] : 0;
  if (index < first) {
    return;
  }
  for (;; ++index) {
    const Elf64_Word chain = chains[index - first];
    Elf64_Sym& symbol = library.symbols[index];
    if ((chain | 1) == (hash | 1) && symbol.st_shndx != SHN_UNDEF && ELF64_ST_TYPE(symbol.st_info) == STT_FUNC &&
        std::strcmp(library.names + symbol.st_name, name) == 0) {
      visit(&symbol);
    }
    if ((chain & 1) != 0) {
      break;
    }
  }
}

std::uintptr_t imports_page_bytes() { return static_cast<std::uintptr_t>(sysconf(_SC_PAGESIZE)); }

// What the loader has protected the page with in which that address of the library lies.
int imports_protection(const ImportsLibrary& library, std::uintptr_t place) {
  int protection = PROT_READ | PROT_WRITE;
  for (std::size_t i = 0; i < library.segment_count; ++i) {
    const Elf64_Phdr& segment = library.segments[i];
    const std::uintptr_t begin = library.base + segment.p_vaddr;
    const std::uintptr_t end = begin + segment.p_memsz;
    if (segment.p_type == PT_GNU_RELRO && begin <= place && place < end / imports_page_bytes() * imports_page_bytes()) {
      return PROT_READ;  // of the last page the rest is data
    }
    if (segment.p_type == PT_LOAD && begin <= place && place < end) {
      protection = ((segment.p_flags & PF_R) != 0 ? PROT_READ : 0) | ((segment.p_flags & PF_W) != 0 ? PROT_WRITE : 0) |
                   ((segment.p_flags & PF_X) != 0 ? PROT_EXEC : 0);
    }
  }
  return protection;
}

Status imports_write(const ImportsLibrary& library, std::uint64_t* entry, std::uint64_t value) {
  const auto place = reinterpret_cast<std::uintptr_t>(entry);
  void* page = reinterpret_cast<void*>(place / imports_page_bytes() * imports_page_bytes());
  const int protection = imports_protection(library, place);
  if ((protection & PROT_WRITE) == 0 && mprotect(page, imports_page_bytes(), protection | PROT_WRITE) != 0) {
    return Status(LMS_UNSUPPORTED, "the system refuses to write the table of functions of '" + library.name +
                                       "': " + std::strerror(errno) + "; run it where mprotect is allowed");
  }
  __atomic_store_n(entry, value, __ATOMIC_RELEASE);
  if ((protection & PROT_WRITE) == 0) {
    mprotect(page, imports_page_bytes(), protection);
  }
  return {};
}

struct ImportsChange {
  std::uintptr_t original;
  std::uintptr_t replacement;
};

// Replaces what the library has imported already.
Status imports_change_entries(const ImportsLibrary& library, const std::vector<ImportsChange>& changes) {
  Status status;
  const auto look = [&](const Elf64_Rela* entries, std::size_t count) {
    for (std::size_t i = 0; i < count && status.ok(); ++i) {
      const std::uint64_t kind = ELF64_R_TYPE(entries[i].r_info);
      if (kind != imports_of_calls && kind != imports_of_addresses && kind != imports_of_pointers) {
        continue;
      }
      auto* entry = reinterpret_cast<std::uint64_t*>(library.base + entries[i].r_offset);
      const std::uint64_t found = __atomic_load_n(entry, __ATOMIC_ACQUIRE);
      if (found < changes.front().original || found > changes.back().original) {
        continue;
      }
      for (const ImportsChange& change : changes) {
        if (change.original == found) {
          status = imports_write(library, entry, change.replacement);
          break;
        }
      }
    }
  };
  if (library.calls != nullptr) {
    look(library.calls, library.call_bytes / sizeof(Elf64_Rela));
  }
  if (library.others != nullptr) {
    look(library.others + library.relative, library.other_bytes / sizeof(Elf64_Rela) - library.relative);
  }
  return status;
}

}  // namespace

Status redirect(const Replacement* replacements, std::size_t count) {
  static std::mutex& lock = *new std::mutex;
  const std::lock_guard<std::mutex> guard(lock);
  Status status;
  std::vector<ImportsChange> changes;
  // The symbols first: what is loaded from then on imports the replacements.
  const std::vector<ImportsLibrary> exporting = imports_libraries();
  for (std::size_t i = 0; i < count; ++i) {
    const Replacement& replacement = replacements[i];
    const auto function = reinterpret_cast<std::uintptr_t>(replacement.function);
    std::uintptr_t original = 0;
    for (const ImportsLibrary& library : exporting) {
      imports_each_symbol(library, replacement.name, [&](Elf64_Sym* symbol) {
        // The library that comes first is where the others import it from.
        const std::uintptr_t address = library.base + symbol->st_value;
        if (original == 0 && address != function) {
          original = address;
          replacement.original->store(reinterpret_cast<void*>(address), std::memory_order_release);
          changes.push_back(ImportsChange{address, function});
        }
        if (address == original && status.ok()) {
          status = imports_write(library, &symbol->st_value, function - library.base);
        }
      });
    }
  }
  if (changes.empty()) {
    return status;
  }
  std::sort(changes.begin(), changes.end(),
            [](const ImportsChange& left, const ImportsChange& right) { return left.original < right.original; });
  for (const ImportsLibrary& library : imports_libraries()) {
    if (status.ok()) {
      status = imports_change_entries(library, changes);
    }
  }
  return status;
}

}  // namespace imports
}  // namespace lms
