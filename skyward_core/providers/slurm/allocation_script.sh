#!/bin/sh
# A pool of skyward: @POOL@
umask 077
node=$(cat <<'SKYWARD_NODE'
umask 077
D=/tmp/skyward-slurm-$(id -u)-@FOLDER@.$SLURM_NODEID
S= W=
members() {
  grep -slzE '(^|/)@FOLDER@[.]'"$SLURM_NODEID"'(/|:|$)' /proc/[0-9]*/environ /proc/[0-9]*/cmdline |
    cut -d/ -f3 | sort -u
}
leave() {
  trap '' TERM INT HUP
  [ -n "$S" ] && kill "$S" 2>/dev/null
  [ -n "$W" ] && kill "$W" 2>/dev/null
  for k in TERM KILL; do
    q=$(members)
    [ -n "$q" ] || break
    kill -$k $q 2>/dev/null
    [ $k = KILL ] || sleep 0.5 2>/dev/null || sleep 1
  done
  rm -rf "$D"
}
fail() {
  echo "skyward-error $SLURM_NODEID $*" | head -c 400 >"$D/draft"; echo >>"$D/draft"; mv "$D/draft" "$D/report"
  sleep 60 & W=$!; wait $W; exit 1
}
mkdir "$D" || exit 1
trap leave EXIT
trap 'exit 0' TERM INT HUP
for p in /usr/sbin/sshd /usr/local/sbin/sshd /sbin/sshd /usr/bin/sshd; do [ -x "$p" ] && break; p=; done
[ -n "$p" ] || fail "$SLURMD_NODENAME has no sshd: install the OpenSSH server on the nodes"
A=$(scontrol show node -o "$SLURMD_NODENAME" 2>/dev/null | sed -n 's/.* NodeAddr=\([^ ]*\) .*/\1/p')
[ -n "$A" ] || A=$SLURMD_NODENAME
ssh-keygen -q -t ed25519 -N '' -C skyward -f "$D/host" </dev/null 2>"$D/log" || fail "ssh-keygen: $(tail -n 1 "$D/log")"
echo '@KEY@' >"$D/authorized"
cat >"$D/config" <<SKYWARD_SSHD
ListenAddress $A
HostKey $D/host
PidFile $D/pid
AuthorizedKeysFile $D/authorized
AllowUsers $(id -un)
PermitRootLogin prohibit-password
PubkeyAuthentication yes
PasswordAuthentication no
ChallengeResponseAuthentication no
UsePAM no
StrictModes no
AllowAgentForwarding no
X11Forwarding no
MaxSessions 200
MaxStartups 100
PrintMotd no
Subsystem sftp internal-sftp
SKYWARD_SSHD
set --
for v in CUDA_VISIBLE_DEVICES ROCR_VISIBLE_DEVICES HIP_VISIBLE_DEVICES GPU_DEVICE_ORDINAL ZE_AFFINITY_MASK; do
  eval "t=\${$v-}"
  case $t in ''|*[!A-Za-z0-9,._:/-]*) ;; *) set -- "$@" "$v=$t";; esac
done
[ $# -eq 0 ] || echo "SetEnv $*" >>"$D/config"
i=0
while :; do
  i=$((i + 1)); [ $i -le 20 ] || fail "$SLURMD_NODENAME: sshd does not start: $(tail -n 1 "$D/log")"
  P=$((@FIRST_PORT@ + $(od -An -N2 -tu2 /dev/urandom) % @PORTS@))
  "$p" -D -f "$D/config" -p $P -E "$D/log" </dev/null &
  S=$!
  n=0
  until [ -s "$D/pid" ]; do
    kill -0 $S 2>/dev/null || break
    n=$((n + 1)); [ $n -le 100 ] || break
    sleep 0.1 2>/dev/null || sleep 1
  done
  [ -s "$D/pid" ] && kill -0 $S 2>/dev/null && break
  kill $S 2>/dev/null
done
echo "skyward-node $SLURM_NODEID $SLURMD_NODENAME $A $P $(id -un) $(cut -d' ' -f1,2 "$D/host.pub")" >"$D/draft"
mv "$D/draft" "$D/report"
alive() {
  for r in "${XDG_CACHE_HOME:-$HOME/.cache}/skyward" "/var/tmp/skyward-$(id -u)" "/tmp/skyward-$(id -u)"; do
    f=$r/pools/@FOLDER@.$SLURM_NODEID
    [ -e "$f/agent.lock" ] || continue
    command -v flock >/dev/null 2>&1 || return 0
    flock -n -s "$f/agent.lock" true 2>/dev/null || return 0
  done
  return 1
}
seen=$(date +%s) limit=@BOOT@
while kill -0 $S 2>/dev/null; do
  sleep @POLL_INTERVAL@ & W=$!; wait $W
  now=$(date +%s)
  if alive; then seen=$now limit=@GONE@; fi
  [ $((now - seen)) -le $limit ] || break
done
SKYWARD_NODE
)
srun --nodes="$SLURM_JOB_NUM_NODES" --ntasks="$SLURM_JOB_NUM_NODES" --ntasks-per-node=1 --mem=0 --cpu-bind=none \
  --kill-on-bad-exit=0 --wait=0 --input=none sh -c "$node" &
step=$!
trap 'kill $step 2>/dev/null' TERM INT HUP
warn=$(cat <<'SKYWARD_NOTICE'
umask 077
D=/tmp/skyward-slurm-$(id -u)-@FOLDER@.$SLURM_NODEID
echo $(($(date +%s) + @LEAD@)) >"$D/draft-notice" && mv "$D/draft-notice" "$D/notice"
SKYWARD_NOTICE
)
# (A signal to the step would reach every process in it, also the ranks.)
trap 'srun --overlap --nodes="$SLURM_JOB_NUM_NODES" --ntasks="$SLURM_JOB_NUM_NODES" --ntasks-per-node=1 --mem=0   --gres=none --cpu-bind=none --input=none sh -c "$warn" &' USR1
while kill -0 $step 2>/dev/null; do wait $step; done
