// Certificates, and what of TLS is spoken.
#include "http/tls.h"

#include <fmt/core.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>
#include <string_view>

#include "base/error.h"

namespace tandem::http {

namespace ssl = boost::asio::ssl;

namespace {

// What OpenSSL says of a failure ("no start line").
std::string reason_of(const boost::system::error_code& error) {
  const char* reason = ERR_reason_error_string(static_cast<unsigned long>(error.value()));
  return reason ? reason : error.message();
}

// OpenSSL's own words about a file that is not there name neither the file nor the reason.
void check_readable(std::string_view flag, const std::string& path) {
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(path.c_str(), "rb"), std::fclose);
  if (file && std::fgetc(file.get()) != EOF) return;
  const bool is_empty = file && std::ferror(file.get()) == 0;
  throw Error(ErrorCode::bad_file, fmt::format("{} {}", flag, path), is_empty ? "is empty" : std::strerror(errno),
              "a readable PEM file");
}

// Only HTTP/1.1 is spoken. A client that offers other protocols alone goes on without the extension, as one that
// offers none.
int select_protocol(SSL* /*tls*/, const unsigned char** out, unsigned char* out_length, const unsigned char* offered,
                    unsigned int offered_length, void* /*unused*/) {
  static constexpr unsigned char spoken[] = "\x08http/1.1";
  unsigned char* chosen = nullptr;
  if (SSL_select_next_proto(&chosen, out_length, spoken, sizeof spoken - 1, offered, offered_length) !=
      OPENSSL_NPN_NEGOTIATED) {
    return SSL_TLSEXT_ERR_NOACK;
  }
  *out = chosen;
  return SSL_TLSEXT_ERR_OK;
}

}  // namespace

ssl::context make_tls_context(const std::string& certificates, const std::string& key) {
  check_readable("--tls-cert", certificates);
  check_readable("--tls-key", key);
  ssl::context context(ssl::context::tls_server);
  SSL_CTX* const native = context.native_handle();
  SSL_CTX_set_min_proto_version(native, TLS1_2_VERSION);
  SSL_CTX_set_options(native, SSL_OP_NO_COMPRESSION | SSL_OP_NO_RENEGOTIATION | SSL_OP_CIPHER_SERVER_PREFERENCE);
  // A partial write comes back as one, and a buffer may have moved when a write is tried again.
  SSL_CTX_set_mode(native,
                   SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER | SSL_MODE_RELEASE_BUFFERS);
  SSL_CTX_set_alpn_select_cb(native, select_protocol, nullptr);

  bool wants_pass_phrase = false;  // without this OpenSSL would ask at the terminal
  context.set_password_callback([&wants_pass_phrase](size_t, ssl::context::password_purpose) {
    wants_pass_phrase = true;
    return std::string();
  });
  boost::system::error_code error;
  context.use_certificate_chain_file(certificates, error);
  if (error) {
    throw Error(ErrorCode::bad_file, "--tls-cert " + certificates, "no certificate can be read: " + reason_of(error),
                "certificates in PEM, the server's first");
  }
  context.use_private_key_file(key, ssl::context::pem, error);
  if (wants_pass_phrase) {
    throw Error(ErrorCode::bad_file, "--tls-key " + key, "is encrypted", "a private key without a pass phrase");
  }
  if (error) {
    const int why = ERR_GET_REASON(static_cast<unsigned long>(error.value()));
    if (why == X509_R_KEY_VALUES_MISMATCH || why == X509_R_KEY_TYPE_MISMATCH) {
      throw Error(ErrorCode::bad_file, "--tls-key " + key, "belongs to another certificate than " + certificates,
                  "the key of that certificate");
    }
    throw Error(ErrorCode::bad_file, "--tls-key " + key, "no key can be read: " + reason_of(error),
                "a private key in PEM");
  }
  // The callback above must not outlive its flag.
  context.set_password_callback([](size_t, ssl::context::password_purpose) { return std::string(); });
  return context;
}

}  // namespace tandem::http
