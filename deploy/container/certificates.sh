#!/bin/sh
# Makes an authority, and a certificate for servers, in a directory:
# certificates.sh DIR [NAME…]. The names are those of the servers as clients and
# the other servers write them; unless they are said, n1, n2 and n3 of compose.yaml.
# They are for trying things out; a site that has an authority uses that. Needs openssl.
set -eu
dir=${1:?usage: certificates.sh DIR [NAME...]}
shift
[ $# -gt 0 ] || set -- n1 n2 n3
mkdir -p "$dir"
cd "$dir"
[ ! -e ca.crt ] || { echo "$dir has certificates already" >&2; exit 1; }
names="DNS:localhost, IP:127.0.0.1"
for name; do names="$names, DNS:$name"; done

openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 3650 \
  -subj "/CN=Parley fleet authority" -keyout ca.key -out ca.crt 2>/dev/null
openssl req -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes \
  -subj "/CN=Parley fleet server" -keyout server.key -out server.csr 2>/dev/null
cat >server.ext <<EOF
subjectAltName = $names
extendedKeyUsage = serverAuth, clientAuth
keyUsage = digitalSignature
EOF
openssl x509 -req -in server.csr -CA ca.crt -CAkey ca.key -CAcreateserial -days 825 \
  -extfile server.ext -out server.crt 2>/dev/null
rm server.csr server.ext
chmod 600 ca.key server.key
