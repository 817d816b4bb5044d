#!/usr/bin/env bash
# The unit files against a real systemd: it runs as PID 1 of private pid, mount, cgroup, ipc and uts namespaces, and
# shardd is installed there by deploy/install into copies of /etc, /usr/local, /run and /var/lib, so that the machine
# stays as it is.
#
# usage: systemd_test.sh DEPLOY_INSTALL SHARDD SHARDCTL     (as root, on any directory)
set -uo pipefail

self=$(readlink -f "$0")
fail() {
    echo "FAIL: $*" >&2
    exit 1
}

# ---- outside: check what is needed, make the namespaces ----
outside() {
    [ $# -eq 3 ] || fail "usage: $0 DEPLOY_INSTALL SHARDD SHARDCTL"
    [ "$(id -u)" -eq 0 ] || fail "this test runs systemd as PID 1 of its own namespaces; run it as root"
    for tool in unshare nsenter systemd-analyze systemctl journalctl; do
        command -v "$tool" >/dev/null || fail "$tool is missing; run deploy/install-deps"
    done
    init=$(readlink -f /lib/systemd/systemd 2>/dev/null) && [ -x "$init" ] || fail "systemd is not installed"
    why=$(unshare --pid --fork --mount --mount-proc --uts --ipc --cgroup true 2>&1) ||
        fail "this machine allows no new namespaces ($why); run the test where root may make them"

    work=$(mktemp -d)
    boot=
    cgroup=shardd-systemd-test-$$
    trap finish EXIT
    trap 'exit 143' TERM INT HUP
    mkdir "$work/bin" "$work/cgroup"
    cp -r "$(dirname "$(readlink -f "$1")")" "$work/deploy"
    install -m 0755 "$(readlink -f "$2")" "$work/bin/shardd"
    install -m 0755 "$(readlink -f "$3")" "$work/bin/shardctl"

    # Its own cgroup, or the new systemd would adopt the processes of ours. The mount is private to this shell's child.
    mount -t cgroup2 none "$work/cgroup" || fail "cannot mount cgroup2"
    mkdir "$work/cgroup/$cgroup" || fail "cannot make a cgroup"
    (
        echo "$BASHPID" >"$work/cgroup/$cgroup/cgroup.procs" || exit 1
        exec unshare --pid --fork --kill-child --mount --mount-proc --uts --ipc --cgroup --propagation private \
            "$self" --boot "$work" "$init"
    ) >"$work/boot.log" 2>&1 &
    boot=$!

    # systemd is the one child of unshare.
    for _ in $(seq 100); do
        init_pid=$(pgrep -P "$boot" | head -n 1) && [ -e "$work/booting" ] && break
        kill -0 "$boot" 2>/dev/null || { cat "$work/boot.log" >&2; fail "the namespaces did not start"; }
        sleep 0.1
    done
    [ -n "${init_pid:-}" ] || fail "no process in the new namespace"
    inside=(nsenter --target "$init_pid" --pid --mount --uts --ipc --cgroup)
    for _ in $(seq 300); do
        state=$("${inside[@]}" systemctl is-system-running 2>/dev/null)
        [ "$state" = running ] || [ "$state" = degraded ] && break
        sleep 0.1
    done
    [ "$state" = running ] || {
        cat "$work/boot.log" >&2
        "${inside[@]}" journalctl -b --no-pager -n 30 >&2
        "${inside[@]}" systemctl list-units --failed --no-pager >&2
        fail "systemd reached the state '$state', not 'running'"
    }
    "${inside[@]}" "$self" --inside "$work"
}

finish() {
    local rc=$?
    trap - EXIT
    if [ -n "$boot" ]; then
        # PID 1 of the namespace: the kernel ends everything in it.
        [ -z "${init_pid:-}" ] || kill -KILL "$init_pid" 2>/dev/null
        kill -KILL "$boot" 2>/dev/null
        wait "$boot" 2>/dev/null
    fi
    if mountpoint -q "$work/cgroup"; then
        for _ in $(seq 50); do
            find "$work/cgroup/$cgroup" -depth -type d -exec rmdir {} + 2>/dev/null && break
            sleep 0.1
        done
        umount "$work/cgroup"
    fi
    rm -rf "$work"
    exit "$rc"
}

# ---- PID 1 of the namespaces, before systemd takes its place ----
boot() {
    work=$1
    mount --make-rprivate /
    # Copies and empty directories instead of the machine's own.
    cp -a /etc "$work/etc"
    mount --bind "$work/etc" /etc
    mkdir "$work/local" && mount --bind "$work/local" /usr/local
    mkdir "$work/lib" && mount --bind "$work/lib" /var/lib
    mount -t tmpfs tmpfs /run
    mount -t tmpfs tmpfs /var/log
    while mountpoint -q /sys/fs/cgroup; do umount -R /sys/fs/cgroup || break; done
    mount -t cgroup2 cgroup2 /sys/fs/cgroup

    # Nothing of it goes to the machine's console or kernel log; the journal inside has it.
    mount --bind /dev/null /dev/console
    mount --bind /dev/null /dev/kmsg

    # A small system: journal, sysusers and tmpfiles run; no unit that would touch hardware or the kernel.
    rm -rf /etc/systemd/system /etc/systemd/*.conf.d /etc/fstab
    mkdir -p /etc/systemd/system/sysinit.target.wants
    for wants in /lib/systemd/system/*.wants; do
        mount -t tmpfs tmpfs "$wants"
    done
    ln -s /lib/systemd/system/systemd-journald.service /etc/systemd/system/sysinit.target.wants/
    ln -s /lib/systemd/system/multi-user.target /etc/systemd/system/default.target
    for generator in /etc/systemd/system-generators /run/systemd/system-generators; do
        mkdir -p "$generator"
        for file in /lib/systemd/system-generators/*; do
            ln -sf /dev/null "$generator/$(basename "$file")"
        done
    done
    : >/etc/machine-id
    touch "$work/booting"
    exec env -i PATH=/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin container=other "$2" --log-target=journal
}

# ---- inside, with systemd as PID 1 ----
property() { systemctl show shardd.service -p "$1" --value; }

# wait_for SECONDS WHAT COMMAND...
wait_for() {
    local deadline=$((SECONDS + $1)) what=$2
    shift 2
    until "$@" >/dev/null 2>&1; do
        [ "$SECONDS" -lt "$deadline" ] || fail "no $what in time"
        sleep 0.1
    done
}

main_pid_is_new() { # OLD: active again, with another main process
    [ "$(property ActiveState)" = active ] && [ "$(property MainPID)" != "$1" ] && [ "$(property MainPID)" != 0 ]
}

passed() { echo "ok: $*"; }

inside() {
    work=$1
    trap 'rc=$?; [ $rc -eq 0 ] || { systemctl status shardd.service shardd.socket --no-pager -l; journalctl -b --no-pager -n 60; } >&2' EXIT

    "$work/deploy/install" --bin "$work/bin" || fail "deploy/install failed"
    systemd-sysusers || fail "systemd-sysusers failed"
    systemd-tmpfiles --create shardd.conf || fail "systemd-tmpfiles failed"
    [ "$(stat -c %U:%G:%a /run/shardd)" = shardd:shardd:755 ] || fail "/run/shardd is $(stat -c %U:%G:%a /run/shardd)"
    systemctl daemon-reload
    if systemctl is-enabled --quiet shardd.socket || systemctl is-active --quiet shardd.socket; then
        fail "deploy/install enabled or started something by itself"
    fi
    passed "install, sysusers, tmpfiles"

    # The example is true: it is valid as it stands, and with every commented default in effect.
    sed 's/^#\([a-z_]* =\)/\1/' /etc/shardd/shardd.conf >/run/all-keys.conf
    cmp -s /etc/shardd/shardd.conf /run/all-keys.conf && fail "the example configuration shows no defaults"
    for conf in /etc/shardd/shardd.conf /run/all-keys.conf; do
        shardd --config "$conf" --check-config || fail "shardd refuses the example configuration ($conf)"
    done
    passed "example configuration"

    verify=$(systemd-analyze verify shardd.service shardd.socket 2>&1) || fail "systemd-analyze verify: $verify"
    [ -z "$verify" ] || fail "systemd-analyze verify is not clean: $verify"
    passed "systemd-analyze verify"
    exposure=$(systemd-analyze security --no-pager shardd.service | sed -n 's/.*Overall exposure level.*: \([0-9.]*\) .*/\1/p')
    awk -v e="${exposure:-99}" 'BEGIN { exit !(e <= 2.5) }' || fail "systemd-analyze security: exposure $exposure > 2.5"
    passed "systemd-analyze security: exposure $exposure"

    # READY: `systemctl start` of a Type=notify unit returns once the daemon said so.
    systemctl start shardd.service || fail "shardd.service did not start"
    [ "$(property ActiveState)/$(property SubState)" = active/running ] || fail "started, but not active"
    [ -n "$(property StatusText)" ] || fail "the daemon sent no STATUS="
    [ "$(stat -c %U:%G:%a /run/shardd/shardd.sock)" = shardd:shardd:660 ] || fail "wrong owner or mode of the socket"
    [ "$(stat -c %U /proc/"$(property MainPID)")" = shardd ] || fail "the daemon does not run as shardd"
    shardctl jobs || fail "shardctl cannot reach the daemon"
    passed "start, READY, STATUS=$(property StatusText)"

    old=$(property MainPID)
    systemctl reload shardd.service || fail "reload failed"
    sleep 0.5
    [ "$(property ActiveState)/$(property MainPID)" = "active/$old" ] || fail "the daemon did not survive SIGHUP"
    passed "reload"

    systemctl stop shardd.service || fail "stop failed"
    [ "$(property Result)" = success ] || fail "stopped with the result $(property Result)"
    [ "$(property ExecMainStatus)" = 0 ] || fail "the daemon exited with $(property ExecMainStatus)"
    passed "stop"

    # Socket activation: the socket alone listens, the first client starts the daemon and is answered.
    systemctl start shardd.socket || fail "shardd.socket did not start"
    [ "$(property ActiveState)" = inactive ] || fail "the socket started the daemon before any client came"
    shardctl jobs || fail "the client that should have started the daemon got no answer"
    wait_for 10 "start by socket activation" test "$(property ActiveState)" = active
    passed "socket activation"

    # kill -9: started again, on the same socket.
    old=$(property MainPID)
    kill -KILL "$old"
    wait_for 20 "restart after kill -9" main_pid_is_new "$old"
    shardctl jobs || fail "shardctl cannot reach the daemon after its restart"
    [ "$(property NRestarts)" = 1 ] || fail "NRestarts is $(property NRestarts), not 1"
    passed "restart after kill -9"

    # Watchdog: a daemon that hangs is killed and started again.
    mkdir -p /run/systemd/system/shardd.service.d
    printf '[Service]\nWatchdogSec=2s\n' >/run/systemd/system/shardd.service.d/watchdog.conf
    systemctl daemon-reload
    systemctl restart shardd.service || fail "restart with a short watchdog failed"
    old=$(property MainPID)
    sleep 5
    [ "$(property ActiveState)/$(property MainPID)" = "active/$old" ] || fail "an idle daemon missed its watchdog"
    kill -STOP "$old"
    wait_for 30 "restart by the watchdog" main_pid_is_new "$old"
    # The record may arrive after the restart.
    wait_for 10 "journal record of the watchdog" sh -c 'journalctl -b -u shardd.service --no-pager | grep -q "Watchdog timeout"'
    shardctl jobs || fail "shardctl cannot reach the daemon after the watchdog"
    passed "watchdog kill and restart"

    # Stop while a job trains: within the running step, with exit status 0.
    install -d -m 0755 /var/lib/shardd-data
    bible -f "Gen1:1-Gen50:26" >/var/lib/shardd-data/text.txt
    chmod 0644 /var/lib/shardd-data/text.txt
    systemctl stop shardd.service
    sed -i 's|^#data_roots =.*|data_roots = /var/lib/shardd-data|' /etc/shardd/shardd.conf
    systemctl start shardd.service || fail "start with a data root failed"
    shardctl submit --detach --name long --model gpt-byte-1m --data /var/lib/shardd-data/text.txt \
        --strategy zero3 --ranks 1 --steps 100000 --micro-batch 2 --global-batch 2 --seq-len 64 || fail "submit failed"
    wait_for 60 "first steps of the job" sh -c 'shardctl --json jobs | grep -Eq "\"step\": ?[1-9]"'
    begin=$SECONDS
    systemctl stop shardd.service || fail "stop during a job failed"
    [ $((SECONDS - begin)) -le 15 ] || fail "stopping took $((SECONDS - begin)) s"
    [ "$(property Result)/$(property ExecMainStatus)" = success/0 ] ||
        fail "stopped with $(property Result), status $(property ExecMainStatus)"
    passed "stop during a step, in $((SECONDS - begin)) s"

    # Exports: the unit cannot write anywhere until it is told where, and the caller gets what it made.
    exports=/var/lib/shardd-data/exports
    as_nobody=(setpriv --reuid=nobody --regid=shardd --clear-groups)
    install -d -o nobody -g shardd -m 2770 "$exports"
    systemctl start shardd.service || fail "start before the export failed"
    "${as_nobody[@]}" shardctl submit --detach --name kept --model gpt-byte-1m --ranks 1 || fail "submit without data failed"
    why=$("${as_nobody[@]}" shardctl export kept --output "$exports/model" 2>&1) && fail "the unit may write where it was not told to"
    case $why in
    *"Read-only file system"*ReadWritePaths=*) ;;
    *) fail "the refused export does not say what to do: $why" ;;
    esac
    printf '[Service]\nReadWritePaths=%s\n' "$exports" >/run/systemd/system/shardd.service.d/exports.conf
    systemctl daemon-reload
    systemctl restart shardd.service || fail "restart with ReadWritePaths= failed"
    "${as_nobody[@]}" shardctl submit --detach --name kept --model gpt-byte-1m --ranks 1 || fail "submit without data failed"
    "${as_nobody[@]}" shardctl export kept --output "$exports/model" || fail "export with ReadWritePaths= failed"
    for file in config.json model.safetensors; do
        "${as_nobody[@]}" test -r "$exports/model/$file" -a -w "$exports/model/$file" || fail "the caller cannot use $file of its export"
    done
    "${as_nobody[@]}" rm -r "$exports/model" || fail "the caller cannot remove its export"
    [ -z "$(ls -A "$exports")" ] || fail "the export left something: $(ls -A "$exports")"
    systemctl stop shardd.service || fail "stop after the export failed"
    passed "export where ReadWritePaths= allows it"

    systemctl stop shardd.socket
    [ ! -e /run/shardd/shardd.sock ] || fail "the socket is left behind"
    "$work/deploy/install" --uninstall >/dev/null || fail "uninstall failed"
    if [ -e /usr/local/bin/shardd ] || [ -e /usr/local/lib/systemd/system/shardd.service ]; then
        fail "uninstall left files"
    fi
    passed "uninstall"
}

case ${1-} in
--boot) shift && boot "$@" ;;
--inside) shift && inside "$@" ;;
*) outside "$@" ;;
esac
