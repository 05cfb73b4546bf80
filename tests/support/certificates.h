#pragma once

// Certificates for tests: made on the spot, good for an hour, unless a test wants bad ones.

#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>
#include <sys/stat.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>

namespace ffrecord::test {

// One who makes certificates.
class Authority {
 public:
  Authority() : key_(MakeKey()) {
    certificate_ = Make("authority", "", *key_, 0, 3600, /*is_authority=*/true);
  }

  // Writes the file that the others have to believe.
  void Write(const std::filesystem::path& path) const { WriteCertificate(path, *certificate_); }

  struct Wish {
    std::string names = "IP:127.0.0.1,DNS:localhost";  // subjectAltName
    long begins_s = -60;
    long ends_s = 3600;
  };
  // cert.pem and key.pem of a new certificate.
  void Issue(const std::filesystem::path& certificate, const std::filesystem::path& key,
             const Wish& wish) const {
    const auto own = MakeKey();
    WriteCertificate(certificate,
                     *Make("test", wish.names, *own, wish.begins_s, wish.ends_s, false));
    WriteKey(key, *own);
  }
  void Issue(const std::filesystem::path& certificate, const std::filesystem::path& key) const {
    Issue(certificate, key, {});
  }

 private:
  struct Free {
    void operator()(EVP_PKEY* one) const { ::EVP_PKEY_free(one); }
    void operator()(X509* one) const { ::X509_free(one); }
    void operator()(std::FILE* one) const { (void)std::fclose(one); }
  };
  using Key = std::unique_ptr<EVP_PKEY, Free>;
  using Certificate = std::unique_ptr<X509, Free>;

  static void Must(bool holds) {
    if (!holds) std::abort();
  }
  static Key MakeKey() { return Key(::EVP_PKEY_Q_keygen(nullptr, nullptr, "EC", "P-256")); }

  static void Extend(X509& made, X509* issuer, int what, const std::string& value) {
    X509V3_CTX context{};
    X509V3_set_ctx(&context, issuer, &made, nullptr, nullptr, 0);
    auto* const extension = ::X509V3_EXT_conf_nid(nullptr, &context, what, value.c_str());
    Must(extension != nullptr);
    ::X509_add_ext(&made, extension, -1);
    ::X509_EXTENSION_free(extension);
  }

  Certificate Make(const char* name, const std::string& names, EVP_PKEY& subject_key, long begins_s,
                   long ends_s, bool is_authority) const {
    static long next_serial = 1;
    Certificate made(::X509_new());
    ::X509_set_version(made.get(), 2);
    ::ASN1_INTEGER_set(::X509_get_serialNumber(made.get()), next_serial++);
    ::X509_gmtime_adj(::X509_getm_notBefore(made.get()), begins_s);
    ::X509_gmtime_adj(::X509_getm_notAfter(made.get()), ends_s);
    X509_NAME* const subject = ::X509_get_subject_name(made.get());
    ::X509_NAME_add_entry_by_txt(subject, "CN", MBSTRING_ASC,
                                 reinterpret_cast<const unsigned char*>(name), -1, -1, 0);
    X509* const issuer = is_authority ? made.get() : certificate_.get();
    ::X509_set_issuer_name(made.get(), ::X509_get_subject_name(issuer));
    ::X509_set_pubkey(made.get(), &subject_key);
    if (is_authority) Extend(*made, issuer, NID_basic_constraints, "critical,CA:TRUE");
    if (!names.empty()) Extend(*made, issuer, NID_subject_alt_name, names);
    Must(::X509_sign(made.get(), key_.get(), ::EVP_sha256()) > 0);
    return made;
  }

  static void WriteCertificate(const std::filesystem::path& path, X509& certificate) {
    const std::unique_ptr<std::FILE, Free> file(std::fopen(path.c_str(), "w"));
    Must(file && ::PEM_write_X509(file.get(), &certificate) == 1);
  }
  static void WriteKey(const std::filesystem::path& path, EVP_PKEY& key) {
    {
      const std::unique_ptr<std::FILE, Free> file(std::fopen(path.c_str(), "w"));
      Must(file &&
           ::PEM_write_PrivateKey(file.get(), &key, nullptr, nullptr, 0, nullptr, nullptr) == 1);
    }
    Must(::chmod(path.c_str(), 0600) == 0);
  }

  Key key_;
  Certificate certificate_;
};

}  // namespace ffrecord::test
