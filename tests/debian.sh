#!/usr/bin/env bash
# Try this tree in another release of Debian, with its Python and its bash:
#
#     sudo tests/debian.sh SUITE FOLDER [user|root [ARGUMENT...]]
#
# SUITE is trixie, forky, sid or another that debootstrap knows; FOLDER becomes its root, and is used again if it is there.
# As `user` (an ordinary one, without the programs that some tests need): the README's two commands. As `root`: .ci/run,
# which installs them. More ARGUMENTS go to pytest.
set -euo pipefail
suite=$1 root=$(realpath -m "$2") who=${3:-user}
tree=$(cd "$(dirname "$0")/.." && pwd)

if [[ ! -e $root/usr/bin/python3 ]]; then
    scripts=/usr/share/debootstrap/scripts  # an older debootstrap doesn't know the newest release by name
    [[ -e $scripts/$suite ]] && script=$scripts/$suite || script=$scripts/sid
    debootstrap --variant=minbase --include=ca-certificates,git,procps,python3,python3-venv \
        "$suite" "$root" http://deb.debian.org/debian "$script"
fi
# the network and its certificates are those of this machine
cp -L /etc/resolv.conf "$root/etc/resolv.conf"
cp -L /etc/ssl/certs/ca-certificates.crt "$root/etc/ssl/certs/ca-certificates.crt"
id=1000
grep -q '^tester:' "$root/etc/passwd" || chroot "$root" useradd --create-home --uid "$id" tester
[[ $who == root ]] && id=0

home=$root/home/tester
rm -rf "$home/tartools"
git -c safe.directory='*' clone -q "$tree" "$home/tartools"
chown -R "$id:$id" "$home/tartools"

cat >"$home/commands" <<'EOF'
set -euo pipefail
cd /home/tester/tartools
python3 --version
bash --version | head -n 1
if [[ $(id -u) == 0 ]]; then
    exec .ci/run "$@"
fi
umask 0002  # that of ordinary users in many places
ulimit -S -n 1024
bash -c "$(grep '^python3 -m venv ' README.md)"
second=$(grep '^\.venv/bin/pip install ' README.md)
bash -c "$second ${*@Q}"
EOF

shift $(($# < 3 ? $# : 3))
settings=()
while IFS= read -r line; do
    settings+=("$line")
done < <(env | grep -E '^(PIP_|[a-z]+_proxy=|[A-Z]+_PROXY=)')
# mounts and processes end with this one
# shellcheck disable=SC2016
unshare --mount --pid --fork bash -euo pipefail -c '
    root=$1 id=$2; shift 2
    mount -t proc proc "$root/proc"
    mount --rbind /dev "$root/dev"
    mount -t tmpfs shm "$root/dev/shm"
    exec chroot --userspec="$id:$id" "$root" /usr/bin/env -i HOME=/home/tester LANG=C.UTF-8 PATH=/usr/bin:/bin:/usr/sbin:/sbin \
        "$@"' - "$root" "$id" "${settings[@]}" bash /home/tester/commands "${@}"
