-- What all scripts share: names of keys, the time, and how an entry moves. It stands in front of each of them.
-- KEYS[1] begins every key; ARGV: milliseconds that a key lives, this replica, then the script's own.

local P, ttl, me = KEYS[1], tonumber(ARGV[1]), ARGV[2]
local GROUP = 'replicas'
local LANES = {'small', 'large'}
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)

local function entry_key(id) return P .. 'entry:' .. id end
local function waiters_key(id) return P .. 'waiters:' .. id end
local function line_key(lane, key) return P .. 'line:' .. lane .. ':' .. key end

local function keep(key) redis.call('PEXPIRE', key, ttl) end

local function get(id, ...) return redis.call('HMGET', entry_key(id), ...) end

-- Entries and reads that wait, by lane.
local function waiting()
  local reads = redis.call('HMGET', P .. 'figures', 'small', 'large')
  return {
    redis.call('ZCARD', P .. 'waiting:small'), tonumber(reads[1]) or 0,
    redis.call('ZCARD', P .. 'waiting:large'), tonumber(reads[2]) or 0,
  }
end

local function send(replica, kind, id, body)
  if replica == me or redis.call('EXISTS', P .. 'replica:' .. replica) == 0 then return end
  redis.call('XADD', P .. 'inbox:' .. replica, '*', 'kind', kind, 'id', id, 'body', body)
  keep(P .. 'inbox:' .. replica)
end

-- A lane's stream holds turns: one for each key that waits, in the order in which the keys take turns.
-- Which of the key's entries a turn is for is decided when it is taken.
local function give_turn(lane, key)
  local stream, turns = P .. 'lane:' .. lane, P .. 'turns:' .. lane
  if redis.call('EXISTS', line_key(lane, key)) == 0 or redis.call('HEXISTS', turns, key) == 1 then return end
  if redis.call('EXISTS', stream) == 0 then redis.call('XGROUP', 'CREATE', stream, GROUP, '0', 'MKSTREAM') end
  redis.call('HSET', turns, key, redis.call('XADD', stream, '*', 'key', key))
  keep(stream)
  keep(turns)
end

local function line_up(id, front)
  local lane, key, reads, deadline = unpack(get(id, 'lane', 'key', 'reads', 'deadline'))
  redis.call(front and 'LPUSH' or 'RPUSH', line_key(lane, key), id)
  redis.call('ZADD', P .. 'waiting:' .. lane, now, id)
  redis.call('ZADD', P .. 'deadlines', deadline, id)
  redis.call('HINCRBY', P .. 'figures', lane, reads)
  give_turn(lane, key)
  for _, key_ in ipairs({line_key(lane, key), P .. 'waiting:' .. lane, P .. 'deadlines', P .. 'figures'}) do
    keep(key_)
  end
end

local function leave_line(id, lane, key, reads)
  if redis.call('ZREM', P .. 'waiting:' .. lane, id) == 1 then
    if redis.call('ZCARD', P .. 'waiting:' .. lane) == 0 then
      redis.call('HDEL', P .. 'figures', lane)
    else
      redis.call('HINCRBY', P .. 'figures', lane, -(tonumber(reads) or 0))
    end
  end
  redis.call('ZREM', P .. 'deadlines', id)
  redis.call('LREM', line_key(lane, key), 1, id)
  if redis.call('EXISTS', line_key(lane, key)) == 0 then
    local turn = redis.call('HGET', P .. 'turns:' .. lane, key)
    if turn then
      redis.call('XDEL', P .. 'lane:' .. lane, turn)
      redis.call('HDEL', P .. 'turns:' .. lane, key)
    end
  end
end

-- The turn with which an entry was taken is done.
local function end_turn(lane, turn)
  if not turn then return end
  redis.call('XACK', P .. 'lane:' .. lane, GROUP, turn)
  redis.call('XDEL', P .. 'lane:' .. lane, turn)
  redis.call('HDEL', P .. 'taken:' .. lane, turn)
end

-- Forget an entry wherever it is.
local function drop(id)
  local state, lane, key, reads, turn, digest = unpack(get(id, 'state', 'lane', 'key', 'reads', 'turn', 'digest'))
  if not state then return end
  if state == 'queued' then leave_line(id, lane, key, reads) else end_turn(lane, turn) end
  if redis.call('GET', P .. 'digest:' .. digest) == id then redis.call('DEL', P .. 'digest:' .. digest) end
  redis.call('DEL', entry_key(id), waiters_key(id))
end

-- Whether somebody works on an entry, or will: it waits, or can be claimed, or its replica lives.
local function alive(id)
  local state, turn, worker = unpack(get(id, 'state', 'turn', 'worker'))
  if not state then return false end
  return state == 'queued' or turn or redis.call('EXISTS', P .. 'replica:' .. worker) == 1
end
