"""What Redis does to a conversation in one step: a reading, and the writing of an exchange.

A conversation is two keys of one slot: a hash of what is known of it, and the list of its turns.

    pointsman:1:talk:{ID}         epoch, revision, session, tenant, created, updated, bytes, tokens, dropped, system
    pointsman:1:talk:{ID}:turns   a turn each, as `turns.written` writes it

`1` is the version of this layout.
"""

from __future__ import annotations

# KEYS: the hash, the list. Returns the hash's epoch, revision, dropped and system, and all turns.
READ = """
return {
    redis.call('HMGET', KEYS[1], 'epoch', 'revision', 'dropped', 'system'),
    redis.call('LRANGE', KEYS[2], 0, -1),
}
"""

# KEYS: the hash, the list.
# ARGV: 1 the epoch that was read, empty: none   2 the revision that is to be replaced, empty: turns are appended
#       3 an epoch for a new conversation        4 now, seconds       5 milliseconds to keep it
#       6 turns, 7 bytes, 8 tokens at most, empty: whatever comes     9 system messages, empty: as they were
#       10 session   11 tenant   12... turns
# Returns `kept` and the new revision; `gone`: the conversation that was read is deleted or forgotten, so nothing of it
# may come back; `changed`: somebody has written since, and nothing that was not read may be replaced.
WRITE = """
local known = redis.call('HMGET', KEYS[1], 'epoch', 'revision', 'bytes', 'tokens', 'dropped', 'system')
local epoch = known[1] or ''
if ARGV[1] ~= '' and epoch ~= ARGV[1] then return {'gone', 0} end
local revision = tonumber(known[2] or '0')
local bytes, tokens, dropped = tonumber(known[3] or '0'), tonumber(known[4] or '0'), tonumber(known[5] or '0')
local system = known[6] or ''
if redis.call('EXISTS', KEYS[2]) == 0 then bytes, tokens = 0, 0 end -- a Redis without memory has dropped them

if ARGV[2] ~= '' then
    if revision ~= tonumber(ARGV[2]) then return {'changed', revision} end
    redis.call('DEL', KEYS[2])
    bytes, tokens, dropped = 0, 0, 0
end
if epoch == '' then
    redis.call('DEL', KEYS[1], KEYS[2])
    redis.call('HSET', KEYS[1], 'epoch', ARGV[3], 'created', ARGV[4], 'session', ARGV[10], 'tenant', ARGV[11])
    bytes, tokens, dropped = 0, 0, 0
end
if ARGV[9] ~= '' then system = ARGV[9] end

local function tokens_of(turn) return tonumber(string.match(turn, '^{"role":"%a+","tokens":(%d+)')) end
for at = 12, #ARGV do
    redis.call('RPUSH', KEYS[2], ARGV[at])
    bytes, tokens = bytes + #ARGV[at], tokens + tokens_of(ARGV[at])
end

local count = redis.call('LLEN', KEYS[2])
if ARGV[6] ~= '' then
    local max_turns, max_bytes, max_tokens = tonumber(ARGV[6]), tonumber(ARGV[7]), tonumber(ARGV[8])
    local function is_over()
        return count > max_turns or bytes + #system > max_bytes or tokens + math.ceil(#system / 4) > max_tokens
    end
    while count > 0 and is_over() do
        repeat
            local turn = redis.call('LPOP', KEYS[2])
            bytes, tokens, dropped, count = bytes - #turn, tokens - tokens_of(turn), dropped + 1, count - 1
            local first = redis.call('LINDEX', KEYS[2], 0)
        until not first or string.sub(first, 1, 14) == '{"role":"user"'
    end
    if #system > max_bytes then system = '' end
end

redis.call('HSET', KEYS[1], 'revision', revision + 1, 'updated', ARGV[4], 'bytes', bytes, 'tokens', tokens,
    'dropped', dropped, 'system', system)
redis.call('PEXPIRE', KEYS[1], ARGV[5])
redis.call('PEXPIRE', KEYS[2], ARGV[5])
return {'kept', revision + 1}
"""
