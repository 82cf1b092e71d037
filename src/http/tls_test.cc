// The server under TLS, with certificates made here and OpenSSL's own client.
#include "http/tls.h"

#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <fstream>

#include "base/error.h"
#include "http/server_fixture.h"

namespace tandem::http::tls_test {
namespace {

namespace fs = std::filesystem;

// A key and a certificate that it signs itself, for 127.0.0.1.
struct Identity {
  Identity() : key(EVP_EC_gen("P-256"), EVP_PKEY_free), certificate(X509_new(), X509_free) {
    ASN1_INTEGER_set(X509_get_serialNumber(certificate.get()), 1);
    X509_set_version(certificate.get(), X509_VERSION_3);
    X509_gmtime_adj(X509_getm_notBefore(certificate.get()), -3600);
    X509_gmtime_adj(X509_getm_notAfter(certificate.get()), 3600);
    X509_NAME* const name = X509_get_subject_name(certificate.get());
    X509_NAME_add_entry_by_txt(name, "CN", MBSTRING_ASC, reinterpret_cast<const unsigned char*>("test"), -1, -1, 0);
    X509_set_issuer_name(certificate.get(), name);
    X509_set_pubkey(certificate.get(), key.get());
    const std::unique_ptr<X509_EXTENSION, void (*)(X509_EXTENSION*)> names(
        X509V3_EXT_conf_nid(nullptr, nullptr, NID_subject_alt_name, "IP:127.0.0.1"), X509_EXTENSION_free);
    X509_add_ext(certificate.get(), names.get(), -1);
    X509_sign(certificate.get(), key.get(), EVP_sha256());
  }
  std::unique_ptr<EVP_PKEY, void (*)(EVP_PKEY*)> key;
  std::unique_ptr<X509, void (*)(X509*)> certificate;
};

// A blocking client that trusts one certificate.
class TlsClient {
 public:
  TlsClient(uint16_t port, X509* trusted, int max_version = TLS1_3_VERSION)
      : context_(SSL_CTX_new(TLS_client_method()), SSL_CTX_free), tls_(nullptr, SSL_free) {
    X509_STORE_add_cert(SSL_CTX_get_cert_store(context_.get()), trusted);
    SSL_CTX_set_verify(context_.get(), SSL_VERIFY_PEER, nullptr);
    SSL_CTX_set_min_proto_version(context_.get(), TLS1_VERSION);
    SSL_CTX_set_max_proto_version(context_.get(), max_version);
    SSL_CTX_set_security_level(context_.get(), 0);
    tls_.reset(SSL_new(context_.get()));
    static constexpr unsigned char protocols[] = "\x02h2\x08http/1.1";
    SSL_set_alpn_protos(tls_.get(), protocols, sizeof protocols - 1);
    X509_VERIFY_PARAM_set1_ip_asc(SSL_get0_param(tls_.get()), "127.0.0.1");
    socket_ = ::socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    const timeval patience{20, 0};
    setsockopt(socket_, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    setsockopt(socket_, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);
    if (::connect(socket_, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) return;
    SSL_set_fd(tls_.get(), socket_);
    connected = SSL_connect(tls_.get()) == 1;
  }
  ~TlsClient() { ::close(socket_); }
  TlsClient(const TlsClient&) = delete;
  TlsClient& operator=(const TlsClient&) = delete;

  bool send(std::string_view bytes) {
    return SSL_write(tls_.get(), bytes.data(), static_cast<int>(bytes.size())) == static_cast<int>(bytes.size());
  }
  // Until `end` has come, or the connection's end; then `closed` says how it ended.
  std::string read_until(std::string_view end) {
    size_t at = 0;
    while (end.empty() || (at = buffer_.find(end)) == std::string::npos) {
      char bytes[16384];
      const int got = SSL_read(tls_.get(), bytes, sizeof bytes);
      if (got <= 0) {
        closed_cleanly = SSL_get_error(tls_.get(), got) == SSL_ERROR_ZERO_RETURN;
        return std::exchange(buffer_, {});
      }
      buffer_.append(bytes, static_cast<size_t>(got));
    }
    std::string result = buffer_.substr(0, at + end.size());
    buffer_.erase(0, at + end.size());
    return result;
  }
  std::string protocol() const {
    const unsigned char* name = nullptr;
    unsigned int length = 0;
    SSL_get0_alpn_selected(tls_.get(), &name, &length);
    return {reinterpret_cast<const char*>(name), length};
  }
  std::string version() const { return SSL_get_version(tls_.get()); }
  void shut_down() { SSL_shutdown(tls_.get()); }

  bool connected = false, closed_cleanly = false;

 private:
  std::unique_ptr<SSL_CTX, void (*)(SSL_CTX*)> context_;
  std::unique_ptr<SSL, void (*)(SSL*)> tls_;
  int socket_ = -1;
  std::string buffer_;
};

class TlsTest : public ServerTest {
 protected:
  TlsTest() : folder_(fs::temp_directory_path() / ("tandem-tls-" + std::to_string(::getpid()))) {
    fs::create_directories(folder_);
    tls_cert_ = write_certificate("cert.pem", identity_);
    tls_key_ = write_key("key.pem", identity_);
  }
  ~TlsTest() override {
    std::error_code ignored;
    fs::remove_all(folder_, ignored);
  }

  std::string path(const std::string& name) const { return (folder_ / name).string(); }
  std::string write(const std::string& name, const std::string& text) const {
    std::ofstream(path(name)) << text;
    return path(name);
  }
  std::string write_certificate(const std::string& name, const Identity& identity) const {
    const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(path(name).c_str(), "w"), std::fclose);
    PEM_write_X509(file.get(), identity.certificate.get());
    return path(name);
  }
  std::string write_key(const std::string& name, const Identity& identity, const char* pass = nullptr) const {
    const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(path(name).c_str(), "w"), std::fclose);
    PEM_write_PrivateKey(file.get(), identity.key.get(), pass ? EVP_aes_128_cbc() : nullptr, nullptr, 0, nullptr,
                         const_cast<char*>(pass));
    return path(name);
  }
  std::unique_ptr<TlsClient> client(int max_version = TLS1_3_VERSION) {
    return std::make_unique<TlsClient>(server_->port(), identity_.certificate.get(), max_version);
  }
  void expect_refusal(const std::string& cert, const std::string& key, ErrorCode code, const std::string& where,
                      const std::string& found) {
    ServerOptions options;
    options.port = 0;
    options.tls_cert = cert;
    options.tls_key = key;
    const auto check = [&](const auto& act) {
      try {
        act();
        ADD_FAILURE() << "taken: " << cert << " " << key;
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), code) << error.what();
        EXPECT_EQ(error.where(), where);
        EXPECT_NE(error.found().find(found), std::string::npos) << error.what();
      }
    };
    check([&] { check_listener(options); });
    check([&] { const Server server(options); });
  }

  Identity identity_;
  fs::path folder_;
};

TEST_F(TlsTest, RequestsAndPipelines) {
  start();
  EXPECT_EQ(server_->url(), "https://127.0.0.1:" + std::to_string(server_->port()));
  const auto one = client();
  ASSERT_TRUE(one->connected);
  EXPECT_EQ(one->version(), "TLSv1.3");
  EXPECT_EQ(one->protocol(), "http/1.1");  // of two that were offered
  for (int i = 0; i < 3; ++i) {
    ASSERT_TRUE(one->send(post("/echo", "body " + std::to_string(i), "X-Request-Id: id\r\n")));
    EXPECT_EQ(status(one->read_until("\r\n\r\n")), 200);
    EXPECT_EQ(one->read_until(std::to_string(i)), "id|body " + std::to_string(i));
  }
  // In one record and at once; then one that comes in pieces.
  ASSERT_TRUE(one->send(get("/hello") + get("/hello") + get("/hello")));
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(one->read_until("hello").ends_with("\r\n\r\nhello"));
  const std::string request = get("/hello");
  ASSERT_TRUE(one->send(request.substr(0, 9)));
  ASSERT_TRUE(one->send(request.substr(9)));
  EXPECT_TRUE(one->read_until("hello").ends_with("\r\n\r\nhello"));
}

TEST_F(TlsTest, LargeBodiesBothWays) {
  start();
  const auto one = client(TLS1_2_VERSION);
  ASSERT_TRUE(one->connected);
  EXPECT_EQ(one->version(), "TLSv1.2");
  const std::string large = std::string(3 << 20, 'x') + "END";
  ASSERT_TRUE(one->send(post("/echo", large, "X-Request-Id: id\r\n")));
  one->read_until("\r\n\r\n");
  EXPECT_EQ(one->read_until("END"), "id|" + large);
}

TEST_F(TlsTest, VersionsBefore12AreRefused) {
  start();
  EXPECT_FALSE(client(TLS1_1_VERSION)->connected);
  EXPECT_TRUE(client(TLS1_2_VERSION)->connected);
}

TEST_F(TlsTest, StreamsEndCleanly) {
  start();
  const auto one = client();
  // HTTP/1.0: the end of the body is the end of the connection, and nothing but TLS tells it from a cut.
  ASSERT_TRUE(one->send("GET /stream HTTP/1.0\r\nHost: localhost\r\n\r\n"));
  one->read_until("\r\n\r\n");
  ASSERT_TRUE(eventually([&] { return holding_ == 1; }));
  on_io([&] {
    held_->send_event("1");
    held_->close_stream();
  });
  EXPECT_EQ(one->read_until({}), "data: 1\n\n");
  EXPECT_TRUE(one->closed_cleanly);
}

TEST_F(TlsTest, RefusalsAreSeenThoughTheBodyIsNotRead) {
  Limits limits;
  limits.body_bytes = 1000;
  start(limits);
  const auto one = client();
  ASSERT_TRUE(one->send(post("/echo", std::string(200'000, 'x'))));
  EXPECT_EQ(status(one->read_until("}}")), 413);
  one->read_until({});
  EXPECT_TRUE(one->closed_cleanly);
}

TEST_F(TlsTest, AClientThatLeavesIsNoticed) {
  start();
  for (const bool politely : {true, false}) {
    const int before = gone_;
    auto one = client();
    ASSERT_TRUE(one->send(get("/stream")));
    one->read_until("\r\n\r\n");
    if (politely) one->shut_down();
    one.reset();
    EXPECT_TRUE(eventually([&] { return gone_ == before + 1; })) << politely;
  }
}

TEST_F(TlsTest, WhoNeverFinishesTheHandshakeIsClosed) {
  Limits limits;
  limits.handshake = std::chrono::milliseconds(100);
  limits.idle = std::chrono::milliseconds(60'000);
  start(limits);
  TestClient silent(server_->port());
  EXPECT_TRUE(silent.closed_by_server());
  TestClient slow(server_->port());
  ASSERT_TRUE(slow.send("\x16\x03\x01\x02"));  // the head of a ClientHello
  EXPECT_EQ(slow.read_all().size(), 0u);
  const auto after = client();  // and others are served
  ASSERT_TRUE(after->connected);
  ASSERT_TRUE(after->send(get("/hello")));
  EXPECT_EQ(status(after->read_until("hello")), 200);
}

TEST_F(TlsTest, PlainHttpIsNotAnswered) {
  start();
  TestClient plain(server_->port());
  ASSERT_TRUE(plain.send(get("/hello")));
  EXPECT_EQ(plain.read_all().find("HTTP/"), std::string::npos);
}

TEST_F(TlsTest, KeysAreAskedForAsWithoutTls) {
  start({}, {"secret"});
  const auto one = client();
  ASSERT_TRUE(one->send(post("/echo", "")));
  EXPECT_EQ(status(one->read_until("}}")), 401);
  ASSERT_TRUE(one->send(post("/echo", "END", "Authorization: Bearer secret\r\n")));
  EXPECT_EQ(status(one->read_until("END")), 200);
}

TEST_F(TlsTest, FilesThatCannotBeUsedAreNamed) {
  const Identity other;
  const std::string cert = tls_cert_, key = tls_key_;
  const std::string other_key = write_key("other.pem", other);
  expect_refusal(cert, "", ErrorCode::usage, "--tls-cert", "no key");
  expect_refusal("", key, ErrorCode::usage, "--tls-key", "no certificate");
  expect_refusal(path("no.pem"), key, ErrorCode::bad_file, "--tls-cert " + path("no.pem"), "No such file");
  expect_refusal(cert, path("no.pem"), ErrorCode::bad_file, "--tls-key " + path("no.pem"), "No such file");
  expect_refusal(folder_.string(), key, ErrorCode::bad_file, "--tls-cert " + folder_.string(), "directory");
  expect_refusal(write("empty.pem", ""), key, ErrorCode::bad_file, "--tls-cert " + path("empty.pem"), "empty");
  expect_refusal(write("text.pem", "no PEM\n"), key, ErrorCode::bad_file, "--tls-cert " + path("text.pem"),
                 "no certificate can be read");
  expect_refusal(key, key, ErrorCode::bad_file, "--tls-cert " + key, "no certificate can be read");
  expect_refusal(cert, cert, ErrorCode::bad_file, "--tls-key " + cert, "no key can be read");
  expect_refusal(cert, other_key, ErrorCode::bad_file, "--tls-key " + other_key, "another certificate");
  expect_refusal(cert, write_key("locked.pem", identity_, "pass"), ErrorCode::bad_file,
                 "--tls-key " + path("locked.pem"), "is encrypted");
}

}  // namespace
}  // namespace tandem::http::tls_test
