#!/bin/sh
# Makes an authority, and a certificate for the servers n1, n2 and n3 of
# compose.yaml, in a directory: certificates.sh DIR. They are for trying things
# out on one machine; a site that has an authority uses that. Needs openssl.
set -eu
dir=${1:?usage: certificates.sh DIR}
mkdir -p "$dir"
cd "$dir"
[ ! -e ca.crt ] || { echo "$dir has certificates already" >&2; exit 1; }

openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 3650 \
  -subj "/CN=Parley fleet authority" -keyout ca.key -out ca.crt 2>/dev/null
openssl req -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes \
  -subj "/CN=Parley fleet server" -keyout server.key -out server.csr 2>/dev/null
cat >server.ext <<EOF
subjectAltName = DNS:n1, DNS:n2, DNS:n3, DNS:localhost, IP:127.0.0.1
extendedKeyUsage = serverAuth, clientAuth
keyUsage = digitalSignature
EOF
openssl x509 -req -in server.csr -CA ca.crt -CAkey ca.key -CAcreateserial -days 825 \
  -extfile server.ext -out server.crt 2>/dev/null
rm server.csr server.ext
chmod 600 ca.key server.key
