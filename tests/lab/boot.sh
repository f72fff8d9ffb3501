# Boots one host of the lab: PID 1 of fresh network, UTS, IPC, PID and mount namespaces; ends as sshd.
# In:  ROOT (the host's folder: etc/ home/ run/ tmp/ var/tmp/ shm/ bin/), NAME, ADDRESS, HOME_WRITABLE, HAS_PYTHON, PRIVATE,
#      KEEP, SSHD.
# Standard input gives one line when the cable has been plugged into the network namespace.
set -eu
mount -n -t proc proc /proc
hostname "$NAME"

# Own /run, /tmp, /var/tmp and /dev/shm are put together aside, then moved into place: they may cover what they are made from.
mount -n -t tmpfs -o mode=755 tmpfs "$ROOT/run"
mkdir "$ROOT/run/sshd" "$ROOT/run/lab" "$ROOT/run/home" "$ROOT/run/lock"
mount -n --bind "$ROOT/etc" "$ROOT/run/lab"
mount -n --bind "$ROOT/home" "$ROOT/run/home"
[ "$HOME_WRITABLE" = 1 ] || mount -n -o remount,bind,ro "$ROOT/run/home"
mount -n -t tmpfs -o mode=1777 tmpfs "$ROOT/tmp"
mount -n -t tmpfs -o mode=1777 tmpfs "$ROOT/var/tmp"
mount -n -t tmpfs -o mode=1777 tmpfs "$ROOT/shm"

# Copies of its own: what it writes goes to memory, and ends with the host.
[ -z "$PRIVATE" ] || mount -n -t tmpfs tmpfs "$ROOT/bin"
for folder in $PRIVATE; do
    mkdir -p "$ROOT/bin/own$folder/upper" "$ROOT/bin/own$folder/work"
    mount -n -t overlay -o "lowerdir=$folder,upperdir=$ROOT/bin/own$folder/upper,workdir=$ROOT/bin/own$folder/work" \
        overlay "$folder"
done

if [ "$HAS_PYTHON" = 0 ]; then
    mount -n -t tmpfs tmpfs "$ROOT/bin"
    for folder in /usr/local/sbin /usr/local/bin /usr/sbin /usr/bin; do
        [ -d "$folder" ] || continue
        mkdir -p "$ROOT/bin$folder/upper" "$ROOT/bin$folder/work"
        mount -n -t overlay -o "lowerdir=$folder,upperdir=$ROOT/bin$folder/upper,workdir=$ROOT/bin$folder/work" \
            overlay "$folder"
        rm -f "$folder"/python* "$folder"/pypy* "$folder"/uv "$folder"/uvx
    done
fi

# The interpreter and this repository may lie under /tmp or /var/tmp.
for kept in $KEEP; do
    mkdir -p "$ROOT$kept"
    mount -n --rbind "$kept" "$ROOT$kept"
done

for file in hosts hostname resolv.conf nsswitch.conf passwd shadow; do
    target=$(readlink -f "/etc/$file")
    case "$target" in
    /run/*) mkdir -p "$(dirname "$ROOT$target")" && cp "$ROOT/etc/$file" "$ROOT$target" ;;
    *) mount -n --bind "$ROOT/etc/$file" "$target" ;;
    esac
done
mount -n --move "$ROOT/shm" /dev/shm
mount -n --move "$ROOT/tmp" /tmp
mount -n --move "$ROOT/var/tmp" /var/tmp
mount -n --move "$ROOT/run" /run

read -r _plugged
[ ! -e /proc/sys/net/ipv6/conf/eth0/disable_ipv6 ] || echo 1 >/proc/sys/net/ipv6/conf/eth0/disable_ipv6
ip link set lo up
ip link set eth0 up
ip address add "$ADDRESS/24" dev eth0

[ ! -s /run/lab/before_sshd ] || env -i PATH="$PATH" HOME=/run/home /bin/sh /run/lab/before_sshd

cd /
exec env -i PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin LANG=C.UTF-8 \
    "$SSHD" -D -f /run/lab/sshd_config -E /run/lab/sshd.log </dev/null >/dev/null 2>&1
