#!/bin/sh
# holmes-topo check in the demo's network: four hosts, a slow link, and hosts that fail each in their
# way. Argument: the program.
# shellcheck disable=SC2016 # for the shells in the network
. "$(dirname "$0")/tap.sh"
. "$top/demo/net.sh"
topo=$1

# The launcher that the failing hosts have.
cat >"$scratch/launch" <<'EOF2'
#!/bin/sh
host=$1
shift
case $host in
dead) echo "ssh: connect to host dead port 22: No route to host" >&2; exit 255 ;;
hung) exec sleep 1000.0625 ;;
bare) exec env /no/such/folder/holmes-topo check-agent ;;
*) exec ip netns exec "$host" "$@" ;;
esac
EOF2
chmod +x "$scratch/launch"

cat >"$scratch/cluster.yaml" <<'EOF2'
holmes-cluster: 1
node-types:
- {name: cpu, gpus: 1, tflops: 0.05, nics: [{name: eth0, kind: ethernet, gbps: 0.2}]}
nodes:
- {hosts: 'a[0-1]', type: cpu, fabric: A}
- {hosts: 'b[0-1]', type: cpu, fabric: B}
links:
- {between: [A, B], gbps: LINK}
EOF2

plan() { # plan GBPS: with that link between the clusters, into $scratch/plan.json
    sed "s/LINK/$1/" "$scratch/cluster.yaml" >"$scratch/filled.yaml"
    "$topo" plan "$scratch/filled.yaml" --layers 4 --hidden 384 --heads 6 --sequence 32 \
        --global-batch 16 --pipeline 2 -o "$scratch/plan.json" >"$scratch/plan.txt" 2>&1 ||
        { cat "$scratch/plan.txt"; return 1; }
}

# in_network COMMANDS: a shell in a network of its own, where check is at hand.
in_network() {
    # shellcheck disable=SC2046 # a list of words
    top=$top topo=$topo scratch=$scratch timeout -k 2 100 $(net_isolation) sh -c '
        . "$top/demo/net.sh"
        net_mbit=50 # the other links have a hundred times that, less what a busy machine takes
        net_up || exit 99
        check() { "$topo" check --launcher "$scratch/launch {host}" "$@"; }
        '"$1"
}

in_json() { # in_json EXPRESSION: holds for the JSON r on $scratch/out
    python3 -c "
import json, sys
r = json.load(open('$scratch/out'))
pairs = {(p['a'], p['b']): p for p in r['pairs']}
nodes = {n['host']: n for n in r['nodes']}
sys.exit(0 if ($1) else 'not so: ' + json.dumps(r, indent=1))"
}

finds_the_slow_link() {
    gives 0 in_network 'check --hosts "a[0-1],b[0-1]"' &&
        says out 'between {a0, a1} and {b0, b1}: 0.0' && says out 'nothing falls short' &&
        says out 'tcp '
}

tells_it_below_the_least() {
    gives 1 in_network 'check --hosts "a[0-1],b[0-1]" --min-gbps 0.1 --json' &&
        in_json 'not r["ok"] and len(pairs) == 6 and r["groups"] == [["a0", "a1"], ["b0", "b1"]]' &&
        in_json 'all(p["state"] == "ok" and p["wire"] == "tcp" for p in pairs.values())' &&
        in_json 'all("a" in f["what"] and "b" in f["what"] for f in r["findings"])' &&
        in_json 'len(r["findings"]) == 8 and all(f["remedy"] for f in r["findings"])' &&
        in_json 'pairs["a0", "a1"]["gbps_forth"] > 0.1 and pairs["a0", "b0"]["gbps_back"] < 0.1'
}

holds_it_against_the_plan() {
    plan 0.05 && gives 0 in_network 'check "$scratch/plan.json"' &&
        plan 2 && gives 1 in_network 'check "$scratch/plan.json"' &&
        says out 'where the plan counts on 0.2 on the link between fabrics A and B' &&
        ! grep -q '^\* a0 to a1' "$scratch/out"
}

names_who_fails() {
    gives 1 in_network 'check --hosts a0,dead,hung,bare,a1 --time-limit 40' &&
        says out 'dead cannot be reached: exit status 255: ssh: connect to host dead port 22' &&
        says out 'hung hangs: no answer within 1' &&
        says out 'bare does not have the program: exit status 127' &&
        says out '--program' &&
        says out '1 of 10 pairs of 5 hosts measured'
}

names_a_host_without_a_network() {
    gives 1 in_network 'ip -n b1 link set eth0 down; check --hosts a0,a1,b1 --json' &&
        in_json 'r["findings"][0]["what"] == "b1 has no network that can be used but lo"' &&
        in_json 'pairs["a0", "a1"]["state"] == "ok" and pairs["a1", "b1"]["state"] == "broken"'
}

# Packets to and from b1 vanish: connecting takes its time, and the rest does not wait for ever.
names_a_host_behind_a_wall() {
    gives 1 in_network 'ip -n switch-b link set b1 nomaster
        check --hosts a0,a1,b0,b1 --json --time-limit 40' &&
        in_json 'nodes["b1"]["state"] == "ok" or nodes["b1"]["state"] == "cut off"' &&
        in_json 'all(p["state"] == "ok" for k, p in pairs.items() if "b1" not in k)' &&
        in_json 'all(p["state"] == "broken" and "b1" in f for k, p in pairs.items() if "b1" in k
                 for f in [" ".join(f["what"] for f in r["findings"])])'
}

ends_with_a_signal() {
    # The hung host's sleep is there once check has started all; then all of it goes.
    gives 143 in_network '"$topo" check --hosts a0,hung --launcher "$scratch/launch {host}" &
        pid=$!
        until grep -qs "1000[.]0625" /proc/[0-9]*/cmdline; do :; done
        kill $pid
        wait $pid
        rc=$?
        ! grep -qs "1000[.]0625" /proc/[0-9]*/cmdline || exit 98
        exit $rc'
}

refuses() { # refuses TEXT ARGUMENTS...
    text=$1
    shift
    gives 2 "$topo" check "$@" && says err "$text"
}

refuses_what_makes_no_sense() {
    unset SLURM_JOB_NODELIST SLURM_JOB_ID
    refuses 'no hosts: give --hosts' && refuses '--time-limit "1"' --hosts a,b --time-limit 1 &&
        refuses 'no {host}' --hosts a,b --launcher ssh && refuses '1 hosts: 2 to' --hosts a &&
        refuses 'a[1-' --hosts 'a[1-' && refuses '/no/such/plan' /no/such/plan &&
        refuses '/no/such/hosts' --hostfile /no/such/hosts &&
        refuses 'give one of them' --hosts a,b --hostfile x &&
        refuses 'those of the plan' plan.json --hosts a,b
}

claim "check refuses what makes no sense" refuses_what_makes_no_sense
if ! net_isolation >/dev/null; then
    skip "check in the demo's network" "no network namespaces for this user"
    exit
fi
claim "check finds the slow link and names its ends" finds_the_slow_link
claim "check --min-gbps tells the pairs below it, in JSON too" tells_it_below_the_least
claim "check holds the pairs against the plan" holds_it_against_the_plan
claim "check names hosts that are dead, hang, or lack the program" names_who_fails
claim "check names a host without a network" names_a_host_without_a_network
claim "check names a host that nobody reaches" names_a_host_behind_a_wall
claim "check ends with a signal and leaves nothing" ends_with_a_signal
