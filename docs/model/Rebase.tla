-------------------------------- MODULE Rebase --------------------------------
(***************************************************************************)
(* A topic in which nothing was ever written gets another initial count.   *)
(* From then on the place of a key is its number modulo the new count, and *)
(* no lineage leads from a place by the old count to one by the new count. *)
(* README.md lists the omissions.                                          *)
(***************************************************************************)
EXTENDS Integers, Sequences, FiniteSets

CONSTANTS
  Old,        \* the count at the topic's creation
  New,        \* the requested count, above Old
  Keys,
  Faults,     \* how many elections, tails, new controllers and sends may happen
  Off         \* the rules that are switched off

VARIABLES
  phase,      \* the topic's znode: "open", "closing", "rebased", "kept"
  part,       \* by partition, its znode: leader epoch, and mode: "open", "closed", "new", "absent"
  host,       \* by partition, its leader: leader epoch, mode, log
  followed,   \* by partition: the epoch in which all in-sync replicas are known to have followed
  tail,       \* by partition: a record that only a cut-off leader has, which is still in the ISR
  answered,   \* the active controller's memory: partition and log end
  deposed,    \* the memory of a controller that lost its office and does not know it
  strays,     \* batches under way, each with the count by which it was placed
  left

vars == <<phase, part, host, followed, tail, answered, deposed, strays, left>>
Rule(name) == name \notin Off
Parts == 0..(New - 1)
First == 0..(Old - 1)
None == [key |-> -1]

Init ==
  /\ phase = "open"
  /\ part = [p \in Parts |-> IF p \in First THEN [epoch |-> 1, mode |-> "open"] ELSE [epoch |-> 0, mode |-> "absent"]]
  /\ host = [p \in Parts |-> [epoch |-> part[p].epoch, mode |-> part[p].mode, log |-> <<>>]]
  /\ followed = [p \in Parts |-> 0] /\ tail = [p \in Parts |-> None]
  /\ answered = {} /\ deposed = {} /\ strays = {} /\ left = Faults

-----------------------------------------------------------------------------
(* The controller *)

Close ==
  /\ phase = "open" /\ phase' = "closing"
  /\ UNCHANGED <<part, host, followed, tail, answered, deposed, strays, left>>

Bump(p, mode) ==
  /\ part[p].mode # mode
  /\ part' = [part EXCEPT ![p] = [epoch |-> @.epoch + 1, mode |-> mode]]
  /\ answered' = {a \in answered : a[1] # p}
  /\ UNCHANGED <<phase, host, followed, tail, deposed, strays, left>>
CloseOne(p) == phase = "closing" /\ Rule("closed") /\ p \in First /\ Bump(p, "closed")
OpenOne(p) ==
  \/ phase = "rebased" /\ Bump(p, "new")
  \/ phase = "kept" /\ p \in First /\ Bump(p, "open")

\* A leader answers with its log end, when it has the closed layout and all in-sync replicas have followed in its epoch.
Answer(p) ==
  /\ phase = "closing" /\ p \in First
  /\ Rule("closed") => part[p].mode = "closed"
  /\ Rule("answer_epoch") => host[p].epoch = part[p].epoch
  /\ IF Rule("answer_followed")
     THEN /\ followed' = [followed EXCEPT ![p] = host[p].epoch]
          /\ tail' = [tail EXCEPT ![p] = None]
     ELSE UNCHANGED <<followed, tail>>
  /\ answered' = {a \in answered : a[1] # p} \cup {<<p, Len(host[p].log)>>}
  /\ answered' # answered
  /\ UNCHANGED <<phase, part, host, deposed, strays, left>>

Heard(answers) == {a[1] : a \in answers}
MayRebase(answers) ==
  /\ IF Rule("all_answer") THEN Heard(answers) = First ELSE answers # {}
  /\ Rule("ends_zero") => \A a \in answers : a[2] = 0

Decide ==
  /\ phase = "closing"
  /\ \/ MayRebase(answered) /\ phase' = "rebased"
     \/ phase' = "kept"                  \* there are records, a leader is away, or the request was taken back
  /\ UNCHANGED <<part, host, followed, tail, answered, deposed, strays, left>>

\* The write of a controller that lost its office: its condition on the epoch of the controller does not hold.
DecideLate ==
  /\ ~Rule("fenced") /\ phase \in {"closing", "kept"} /\ deposed # {} /\ MayRebase(deposed)
  /\ phase' = "rebased"
  /\ UNCHANGED <<part, host, followed, tail, answered, deposed, strays, left>>

NewController ==
  /\ left.controller > 0 /\ left' = [left EXCEPT !.controller = @ - 1]
  /\ deposed' = answered /\ answered' = {}
  /\ UNCHANGED <<phase, part, host, followed, tail, strays>>

-----------------------------------------------------------------------------
(* Leaders and producers *)

Arrive(p) ==
  /\ host[p].epoch < part[p].epoch
  /\ host' = [host EXCEPT ![p].epoch = part[p].epoch, ![p].mode = part[p].mode]
  /\ UNCHANGED <<phase, part, followed, tail, answered, deposed, strays, left>>

Election(p) ==
  /\ left.election > 0 /\ left' = [left EXCEPT !.election = @ - 1] /\ part[p].mode # "absent"
  /\ part' = [part EXCEPT ![p].epoch = @ + 1]
  /\ answered' = IF Rule("answer_epoch") THEN {a \in answered : a[1] # p} ELSE answered
  /\ UNCHANGED <<phase, host, followed, tail, deposed, strays>>

\* A producer knows the old count for as long as it likes, and the new one once the topic has it.
Send(k) ==
  /\ left.sends > 0 /\ left' = [left EXCEPT !.sends = @ - 1]
  /\ \E count \in {Old} \cup (IF phase = "rebased" THEN {New} ELSE {}) :
       strays' = strays \cup {[key |-> k, part |-> k % count]}
  /\ UNCHANGED <<phase, part, host, followed, tail, answered, deposed>>

\* A batch of a stock producer names no layout: after the rebase the leader looks at its key.
Takes(mode, r) == mode = "open" \/ (mode = "new" /\ (Rule("keys_checked") => r.key % New = r.part))
Append1(r) ==
  /\ Takes(host[r.part].mode, r)
  /\ host' = [host EXCEPT ![r.part].log = Append(@, r)]
  /\ strays' = strays \ {r}
  /\ UNCHANGED <<phase, part, followed, tail, answered, deposed, left>>
Refuse(r) ==
  /\ ~Takes(host[r.part].mode, r) /\ strays' = strays \ {r}
  /\ UNCHANGED <<phase, part, host, followed, tail, answered, deposed, left>>

\* A leader of an earlier epoch that was cut off, and stays in the ISR, appends; later it leads again.
TailAppend(r) ==
  /\ left.tail > 0 /\ left' = [left EXCEPT !.tail = @ - 1]
  /\ r.part \in First /\ tail[r.part] = None /\ followed[r.part] = 0 /\ part[r.part].epoch > 1
  /\ tail' = [tail EXCEPT ![r.part] = r] /\ strays' = strays \ {r}
  /\ UNCHANGED <<phase, part, host, followed, answered, deposed>>
TailElection(p) ==
  /\ tail[p] # None
  /\ part' = [part EXCEPT ![p].epoch = @ + 1]
  /\ host' = [host EXCEPT ![p] = [epoch |-> part[p].epoch + 1, mode |-> part[p].mode, log |-> <<tail[p]>>]]
  /\ tail' = [tail EXCEPT ![p] = None]
  /\ answered' = {a \in answered : a[1] # p}
  /\ UNCHANGED <<phase, followed, deposed, strays, left>>

Next ==
  \/ Close \/ Decide \/ DecideLate \/ NewController
  \/ \E p \in Parts : CloseOne(p) \/ OpenOne(p) \/ Answer(p) \/ Arrive(p) \/ Election(p) \/ TailElection(p)
  \/ \E k \in Keys : Send(k)
  \/ \E r \in strays : Append1(r) \/ Refuse(r) \/ TailAppend(r)

Spec == Init /\ [][Next]_vars

-----------------------------------------------------------------------------
Placed == phase = "rebased" =>
  \A p \in Parts : \A i \in DOMAIN host[p].log : host[p].log[i].key % New = p
=============================================================================
