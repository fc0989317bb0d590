#include <ATen/cuda/LmsImports.h>
#include <dlfcn.h>
#include <elf.h>
#include <link.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <memory>
#include <stdexcept>

namespace lms_cuda {

namespace {

// The kinds of relocation that stand for the address of an imported function: a call through the linkage table, and one
// without it (-fno-plt).
#if defined(__x86_64__)
constexpr uint64_t of_calls = R_X86_64_JUMP_SLOT;
constexpr uint64_t of_addresses = R_X86_64_GLOB_DAT;
#elif defined(__aarch64__)
constexpr uint64_t of_calls = R_AARCH64_JUMP_SLOT;
constexpr uint64_t of_addresses = R_AARCH64_GLOB_DAT;
#elif defined(__powerpc64__) && defined(__LITTLE_ENDIAN__)
constexpr uint64_t of_calls = R_PPC64_JMP_SLOT;
constexpr uint64_t of_addresses = R_PPC64_GLOB_DAT;
#else
#error "LMS does not know how libraries import functions on this machine"
#endif

struct Dynamic {
  const Elf64_Rela* calls = nullptr;
  size_t call_bytes = 0;
  const Elf64_Rela* others = nullptr;
  size_t other_bytes = 0;
  size_t relative = 0;  // so many of the others, the first ones, import nothing
  const Elf64_Sym* symbols = nullptr;
  const char* names = nullptr;
};

Dynamic read_dynamic(const link_map& map) {
  Dynamic dynamic;
  for (const Elf64_Dyn* entry = map.l_ld; entry->d_tag != DT_NULL; ++entry) {
    // The loader has relocated most of these addresses, but not those of every library.
    const Elf64_Addr address = entry->d_un.d_ptr + (entry->d_un.d_ptr < map.l_addr ? map.l_addr : 0);
    switch (entry->d_tag) {
      case DT_JMPREL:
        dynamic.calls = reinterpret_cast<const Elf64_Rela*>(address);
        break;
      case DT_PLTRELSZ:
        dynamic.call_bytes = entry->d_un.d_val;
        break;
      case DT_RELA:
        dynamic.others = reinterpret_cast<const Elf64_Rela*>(address);
        break;
      case DT_RELASZ:
        dynamic.other_bytes = entry->d_un.d_val;
        break;
      case DT_RELACOUNT:
        dynamic.relative = entry->d_un.d_val;
        break;
      case DT_SYMTAB:
        dynamic.symbols = reinterpret_cast<const Elf64_Sym*>(address);
        break;
      case DT_STRTAB:
        dynamic.names = reinterpret_cast<const char*>(address);
        break;
      default:
        break;
    }
  }
  return dynamic;
}

uintptr_t page_bytes() { return static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE)); }

// The part of a library that the loader made read-only.
struct Protected {
  uintptr_t base;  // of the library
  uintptr_t begin = 0;
  uintptr_t end = 0;
};

int find_protected(dl_phdr_info* info, size_t /*size*/, void* result) {
  auto* found = static_cast<Protected*>(result);
  if (info->dlpi_addr != found->base) {
    return 0;
  }
  for (int i = 0; i < info->dlpi_phnum; ++i) {
    const auto& segment = info->dlpi_phdr[i];
    if (segment.p_type == PT_GNU_RELRO) {
      found->begin = info->dlpi_addr + segment.p_vaddr;
      found->end = (found->begin + segment.p_memsz) / page_bytes() * page_bytes();  // of the last page the rest is data
    }
  }
  return 1;
}

void write_entry(void** entry, void* address, const Protected& part) {
  const auto place = reinterpret_cast<uintptr_t>(entry);
  void* page = reinterpret_cast<void*>(place / page_bytes() * page_bytes());
  const bool is_protected = part.begin <= place && place < part.end;
  if (is_protected && ::mprotect(page, page_bytes(), PROT_READ | PROT_WRITE) != 0) {
    throw std::runtime_error(std::string("a library's table of addresses cannot be written: ") + std::strerror(errno));
  }
  __atomic_store_n(entry, address, __ATOMIC_RELEASE);
  if (is_protected) {
    ::mprotect(page, page_bytes(), PROT_READ);
  }
}

// How many libraries were loaded and unloaded since the process began.
struct Changes {
  unsigned long long loads = 0;
  unsigned long long unloads = 0;
};

int read_changes(dl_phdr_info* info, size_t /*size*/, void* changes) {
  *static_cast<Changes*>(changes) = Changes{info->dlpi_adds, info->dlpi_subs};
  return 1;
}

struct Closer {
  void operator()(void* handle) const { ::dlclose(handle); }
};

}  // namespace

void Imports::add(void* original, void* replacement) {
  Dl_info info{};
  if (::dladdr(original, &info) == 0 || info.dli_sname == nullptr || info.dli_saddr != original) {
    throw std::runtime_error("a function of PyTorch's CUDA allocator is not exported by a library of its own");
  }
  functions_.push_back(Function{info.dli_sname, info.dli_fbase, replacement});
}

void Imports::add(const char* name, void* original, void* replacement) {
  Dl_info info{};
  if (::dladdr(original, &info) != 0) {
    functions_.push_back(Function{name, info.dli_fbase, replacement});
  }
}

const Imports::Function* Imports::find(const char* name) const {
  for (const Function& function : functions_) {
    if (function.name == name) {
      return &function;
    }
  }
  return nullptr;
}

void Imports::redirect() {
  Changes changes;
  ::dl_iterate_phdr(&read_changes, &changes);
  if (changes.loads == loads_.load(std::memory_order_acquire)) {
    return;
  }
  const std::lock_guard<std::mutex> guard(lock_);
  if (changes.unloads != unloads_) {
    seen_.clear();  // one may have come back to where it was
    unloads_ = changes.unloads;
  }
  std::set<Library> loaded;
  ::dl_iterate_phdr(
      [](dl_phdr_info* info, size_t /*size*/, void* all) {
        static_cast<std::set<Library>*>(all)->insert({info->dlpi_name, reinterpret_cast<const void*>(info->dlpi_addr)});
        return 0;
      },
      &loaded);
  for (const Library& library : loaded) {
    if (seen_.count(library) == 0) {
      redirect_in(library);
    }
  }
  seen_ = std::move(loaded);
  loads_.store(changes.loads, std::memory_order_release);
}

void Imports::redirect_in(const Library& library) {
  // A library that is just being loaded is listed before its tables are filled in. Asking for it waits until they are.
  const char* name = library.first.empty() ? nullptr : library.first.c_str();
  const std::unique_ptr<void, Closer> handle(::dlopen(name, RTLD_LAZY | RTLD_NOLOAD));
  link_map* map = nullptr;
  if (handle == nullptr || ::dlinfo(handle.get(), RTLD_DI_LINKMAP, static_cast<void*>(&map)) != 0 ||
      reinterpret_cast<const void*>(map->l_addr) != library.second) {
    return;  // it is gone, or the kernel's
  }
  const Dynamic dynamic = read_dynamic(*map);
  Protected part{map->l_addr};
  ::dl_iterate_phdr(&find_protected, &part);
  const auto look = [&](const Elf64_Rela* entries, size_t count, uint64_t kind) {
    for (size_t i = 0; i < count; ++i) {
      if (ELF64_R_TYPE(entries[i].r_info) != kind) {
        continue;
      }
      const Elf64_Sym& symbol = dynamic.symbols[ELF64_R_SYM(entries[i].r_info)];
      const Function* function = symbol.st_shndx == SHN_UNDEF ? find(dynamic.names + symbol.st_name) : nullptr;
      if (function != nullptr && function->home != library.second) {
        write_entry(reinterpret_cast<void**>(map->l_addr + entries[i].r_offset), function->replacement, part);
        count_.fetch_add(1);
      }
    }
  };
  look(dynamic.calls, dynamic.call_bytes / sizeof(Elf64_Rela), of_calls);
  if (dynamic.others != nullptr) {
    const size_t count = dynamic.other_bytes / sizeof(Elf64_Rela);
    look(dynamic.others + dynamic.relative, count - dynamic.relative, of_addresses);
  }
}

}  // namespace lms_cuda
