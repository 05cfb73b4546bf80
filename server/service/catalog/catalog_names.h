#pragma once

#include <string>
#include <utility>

#include "server/service/catalog/catalog.h"
#include "server/service/catalog/names.h"

namespace ffrecord::server {

// The names of a single daemon. All calls block on its disk, and are done when they return. Borrows
// the catalog.
class CatalogNames final : public Names {
 public:
  explicit CatalogNames(Catalog& catalog) : catalog_(catalog) {}

  void BeginPut(const net::PutBegin& begin, std::string owner_prefix,
                Done<std::optional<NewExtent>> done) override {
    done(catalog_.BeginPut(begin, owner_prefix));
  }
  void NoteHeard(const ExtentId& id) override { catalog_.NoteHeard(id); }
  Result<void> Seal(ExtentWriter& writer, const net::PutSeal& seal) override {
    return catalog_.Seal(writer, seal);
  }
  void Resolve(const net::Resolve& request, Done<Resolved> done) override {
    done(catalog_.Resolve(request.name));
  }
  void Publish(const net::Publish& publish, std::span<const std::byte> manifest,
               std::string own_prefix, Done<net::RevisionReply> done) override {
    done(catalog_.Publish(publish, manifest, own_prefix));
  }
  Result<void> CheckRoom(std::string_view name, std::uint64_t size_bytes) override {
    return catalog_.CheckRoom(name, size_bytes);
  }
  void List(const net::List& list, Done<net::ListReply> done) override {
    done(catalog_.List(list));
  }
  void Remove(const net::Delete& request, Done<void> done) override {
    done(catalog_.Remove(request));
  }
  std::vector<bool> AreReferenced(std::string_view prefix,
                                  std::span<const ExtentId> ids) const override {
    return catalog_.references().AreReferenced(prefix, ids);
  }
  Result<void> CheckAnswers() const override { return catalog_.CheckAnswers(); }
  std::uint64_t name_count() const override { return catalog_.name_count(); }
  std::vector<Usage> Usages() const override { return catalog_.Usages(); }

 private:
  Catalog& catalog_;
};

}  // namespace ffrecord::server
