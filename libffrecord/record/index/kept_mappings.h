#pragma once

#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <memory>
#include <type_traits>
#include <utility>

namespace ffrecord {

// An array of atomics, all zero, whose pages take memory only once they are written to: for the
// index of an enormous file, only touched pages cost memory.
template <class T>
class ZeroedAtomics {
 public:
  explicit ZeroedAtomics(std::size_t count)
      : first_(static_cast<std::atomic<T>*>(std::calloc(count + 1, sizeof(std::atomic<T>)))) {
    static_assert(std::is_trivially_destructible_v<std::atomic<T>> &&
                  sizeof(std::atomic<T>) == sizeof(T));
  }
  // False if there was no memory for it.
  explicit operator bool() const noexcept { return first_ != nullptr; }
  std::atomic<T>& operator[](std::size_t i) const noexcept { return first_.get()[i]; }

 private:
  struct Free {
    void operator()(void* memory) const noexcept { std::free(memory); }
  };
  std::unique_ptr<std::atomic<T>, Free> first_;
};

// Owners of mapped bytes that are kept for as long as this lives. Thread-safe without a mutex: a
// mutex that one thread holds while another forks would stay locked in the child.
class KeptOwners {
 public:
  KeptOwners() = default;
  KeptOwners(const KeptOwners&) = delete;
  KeptOwners& operator=(const KeptOwners&) = delete;
  ~KeptOwners() {
    for (Node* node = newest_.load(); node != nullptr;) delete std::exchange(node, node->next);
  }

  void Keep(std::shared_ptr<const void> owner) {
    Node* newest = newest_.load(std::memory_order_acquire);
    // Most readers map a file once and hand out parts of it: one owner is enough then.
    if (newest != nullptr && newest->owner == owner) return;
    auto* node = new Node{std::move(owner), newest};
    while (!newest_.compare_exchange_weak(node->next, node, std::memory_order_acq_rel)) {
    }
  }

 private:
  struct Node {
    std::shared_ptr<const void> owner;
    Node* next;
  };
  std::atomic<Node*> newest_{nullptr};  // A list that only grows.
};

}  // namespace ffrecord
