// TLS for the listener: certificate and key from files. Seen by server.cc only, because it carries Boost.
#pragma once

#include <boost/asio/ssl/context.hpp>
#include <string>

namespace tandem::http {

// TLS 1.2 and 1.3, ALPN "http/1.1". `certificates`: PEM, the server's own first, then what leads from it to the
// authority; `key`: its private key, PEM without a pass phrase. Throws Error(bad_file) naming the flag and the file:
// not there, not readable, not PEM, encrypted, a key that belongs to another certificate.
boost::asio::ssl::context make_tls_context(const std::string& certificates, const std::string& key);

}  // namespace tandem::http
